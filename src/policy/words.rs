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
