//! One macro for the closed sets of words that are, unchanged, the metric label, the log field,
//! the API value and the word on the page.

/// Declares an enum whose variants each have one stable word.
///
/// Gives `ALL`, `as_str`, `Display`, `FromStr` (the error lists the known words) and serde as that word.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident as $what:literal { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// Every value, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word used on the wire, in metrics, logs and pages.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::policy::UnknownWord;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::policy::UnknownWord::new($what, s, Self::ALL.iter().map(|w| w.as_str()))),
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                word.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use words;

/// A word that is in none of the closed sets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} \"{}\"; known: {known}", found.escape_debug())]
pub struct UnknownWord {
    what: &'static str,
    found: String,
    known: String,
}

impl UnknownWord {
    /// `found` is cut at 80 characters so that a hostile input cannot fill the log.
    pub fn new<'a>(what: &'static str, found: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        Self { what, found: found.chars().take(80).collect(), known: known.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::str::FromStr;

    use crate::policy::{Closed, Hold, HoldCause, Mode, Outcome, Phase, Reason, Receipt, Rung, Source, State, StopReason, Symptom};

    #[track_caller]
    fn goes_round<W>(all: &[W])
    where
        W: Copy + Debug + PartialEq + FromStr<Err: Debug> + ToString + serde::Serialize + serde::de::DeserializeOwned,
    {
        for word in all {
            let text = word.to_string();
            assert_eq!(text.parse::<W>().unwrap(), *word);
            let json = serde_json::to_string(word).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<W>(&json).unwrap(), *word);
            // As a value that cannot be borrowed, too.
            assert_eq!(serde_json::from_value::<W>(text.clone().into()).unwrap(), *word);
            assert!(text.to_uppercase().parse::<W>().is_err() && format!(" {text}").parse::<W>().is_err());
        }
        assert!("".parse::<W>().is_err());
        let texts: std::collections::BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), all.len(), "two words are one");
    }

    #[test]
    fn every_word_comes_back_as_itself() {
        goes_round(Rung::ALL);
        goes_round(Symptom::ALL);
        goes_round(Reason::ALL);
        goes_round(Source::ALL);
        goes_round(Hold::ALL);
        goes_round(HoldCause::ALL);
        goes_round(Outcome::ALL);
        goes_round(Receipt::ALL);
        goes_round(Closed::ALL);
        goes_round(Phase::ALL);
        goes_round(Mode::ALL);
        goes_round(State::ALL);
        goes_round(StopReason::ALL);
    }

    #[test]
    fn an_unknown_word_is_shown_shortened_and_harmless() {
        let error = format!("{}\n{}", "x".repeat(70), "y".repeat(70)).parse::<Mode>().unwrap_err().to_string();
        assert!(error.contains("unknown mode") && error.ends_with("known: observe, act"), "{error}");
        assert!(!error.contains('\n') && error.len() < 160, "{error}");
    }

    #[test]
    fn ranks_are_the_order_of_the_ladder() {
        let ranks: Vec<u8> = Rung::ALL.iter().map(|r| r.rank()).collect();
        assert_eq!(ranks, (0..=10).collect::<Vec<u8>>());
        assert_eq!(Rung::from_rank(10), Some(Rung::HostRestart));
        assert_eq!(Rung::from_rank(11), None);
    }
}
