"""The source of both dashboards: what each panel asks, in which unit, and what it tells.

deploy/generate.py writes the JSON from this. A panel cannot be made without a description, a unit and a legend.
"""

RUNGS = ["client_reconnect", "capability_refresh", "session_reconnect", "configuration_reload", "lease_recovery", "worker_restart",
         "role_runtime_restart", "connector_restart", "rolling_mcp_restart", "full_mcp_restart", "host_restart"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The daemon's series of the chosen instances.
M = 'instance=~"$instance"'
FULL = 'action=~"full_mcp_restart|host_restart"'
GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "text"


def target(expr, legend, ref="A", instant=False, fmt="time_series"):
    return {"datasource": DATASOURCE, "refId": ref, "expr": expr, "legendFormat": legend, "editorMode": "code", "format": fmt,
            "instant": instant, "range": not instant}


def targets(queries, **how):
    return [target(expr, legend, ref="ABCDEFGH"[i], **how) for i, (expr, legend) in enumerate(queries)]


def steps(*pairs):
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in pairs]}


def values(**of):
    """A mapping of values to words: {word: (value, color)}."""
    return [{"type": "value", "options": {str(value): {"text": word.replace("_", " "), "color": color, "index": i}
                                          for i, (word, (value, color)) in enumerate(of.items())}}]


def panel(kind, title, description, unit, queries, width, height, options, defaults, thresholds, custom=None, overrides=(), links=(), **rest):
    field = {"unit": unit, "thresholds": thresholds or steps((None, BLUE)), **defaults}
    if custom is not None:
        field["custom"] = custom
    return {"type": kind, "title": title, "description": description, "datasource": DATASOURCE, "targets": queries,
            "gridPos": {"h": height, "w": width, "x": 0, "y": 0}, "fieldConfig": {"defaults": field, "overrides": list(overrides)},
            "options": options, "links": list(links), "transparent": False, **rest}


def stat(title, description, unit, expr, legend, width=4, thresholds=None, mappings=(), no_value=None, height=4, decimals=None, text="auto"):
    defaults = {"mappings": list(mappings), "color": {"mode": "thresholds"}}
    if no_value is not None:
        defaults["noValue"] = no_value
    if decimals is not None:
        defaults["decimals"] = decimals
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    options = {"reduceOptions": reduce, "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": text,
               "orientation": "auto", "wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard"}
    return panel("stat", title, description, unit, targets([(expr, legend)], instant=True), width, height, options, defaults, thresholds)


def series(title, description, unit, queries, width=12, height=8, stack=False, minimum=0, overrides=(), calcs=("lastNotNull",)):
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 20 if stack else 8, "showPoints": "never", "spanNulls": False,
              "lineInterpolation": "stepAfter", "stacking": {"mode": "normal" if stack else "none", "group": "A"}}
    options = {"legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": list(calcs)},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    defaults = {"color": {"mode": "palette-classic"}, "mappings": []}
    if minimum is not None:
        defaults["min"] = minimum
    return panel("timeseries", title, description, unit, targets(queries), width, height, options, defaults, None, custom, overrides)


def bars(title, description, unit, queries, width=8, height=8):
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    options = {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic", "valueMode": "color", "namePlacement": "auto",
               "showUnfilled": True, "sizing": "auto", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 300,
               "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []}}
    defaults = {"color": {"mode": "palette-classic"}, "mappings": [], "min": 0}
    return panel("bargauge", title, description, unit, targets(queries, instant=True), width, height, options, defaults, None)


def heat(title, description, metric, width=8, height=8):
    expr = f"sum by (le) (increase({metric}_bucket{{{M}}}[$__rate_interval]))"
    options = {"calculate": False, "cellGap": 1, "cellValues": {"unit": "short"}, "color": {
                   "mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange", "reverse": False},
               "filterValues": {"le": 1e-9}, "rowsFrame": {"layout": "auto"}, "showValue": "never",
               "yAxis": {"unit": "s", "axisPlacement": "left", "reverse": False}, "legend": {"show": True},
               "exemplars": {"color": "rgba(255,0,255,0.7)"}, "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False}}
    custom = {"scaleDistribution": {"type": "linear"}, "hideFrom": {"legend": False, "tooltip": False, "viz": False}}
    return panel("heatmap", title, description, "s", targets([(expr, "{{le}}")], fmt="heatmap"), width, height, options, {"mappings": []}, None, custom)


def table(title, description, unit, queries, width, height, names, hide=(), transformations=(), overrides=(), links=(), thresholds=None):
    arrange = {"id": "organize", "options": {"excludeByName": {name: True for name in hide}, "indexByName": {}, "renameByName": names}}
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": False}
    options = {"showHeader": True, "cellHeight": "sm", "frameIndex": 0, "sortBy": [], "enablePagination": False}
    queries = targets(queries, instant=True, fmt="table")
    return panel("table", title, description, unit, queries, width, height, options, {"mappings": [], "color": {"mode": "thresholds"}},
                 thresholds, custom, overrides, links, transformations=[*transformations, arrange])


def timeline(title, description, queries, mappings, width=24, height=5):
    options = {"alignValue": "left", "mergeValues": True, "rowHeight": 0.8, "showValue": "auto",
               "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
               "tooltip": {"mode": "single", "sort": "none"}}
    defaults = {"mappings": mappings, "color": {"mode": "thresholds"}}
    return panel("state-timeline", title, description, "none", targets(queries), width, height, options, defaults, steps((None, BLUE)),
                 {"fillOpacity": 80, "lineWidth": 0})


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"h": 1, "w": 24, "x": 0, "y": 0}}


def column(name, *properties):
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": key, "value": value} for key, value in properties]}


def laid(panels):
    """Fills rows of 24 columns from the left, and numbers the panels."""
    x = y = tallest = 0
    for number, each in enumerate(panels, 1):
        place = each["gridPos"]
        if x + place["w"] > 24:
            x, y, tallest = 0, y + tallest, 0
        place["x"], place["y"] = x, y
        x, tallest, each["id"] = x + place["w"], max(tallest, place["h"]), number
    return panels


def query_variable(name, label, query, multi):
    every = {"selected": True, "text": "All", "value": "$__all"}
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "query": {"query": query, "refId": name}, "refresh": 2,
            "sort": 1, "multi": multi, "includeAll": multi, "allValue": ".*" if multi else None, "current": every if multi else None, "hide": 0}


def variables(*more):
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0}
    url = {"name": "medic", "label": "hangar-medic", "type": "textbox", "query": "http://127.0.0.1:9923", "hide": 0,
           "current": {"selected": True, "text": "http://127.0.0.1:9923", "value": "http://127.0.0.1:9923"}}
    cleaned = [{k: v for k, v in one.items() if v is not None} for one in more]
    return {"list": [source, *cleaned, url]}


def link(title, url, tooltip):
    return {"type": "link", "title": title, "url": url, "tooltip": tooltip, "icon": "external link", "asDropdown": False, "includeVars": False,
            "keepTime": False, "tags": [], "targetBlank": True}


LINKS = [
    link("Status page", "${medic}/", "What is wrong now, and what the daemon does about it"),
    link("Runbook: dead server", "${medic}/runbooks/MCPHangarProviderDead", "For whoever is paged"),
    link("Runbook: holds", "${medic}/runbooks/holds", "Why nothing is done, and how that ends"),
    {"type": "dashboards", "title": "MCP Hangar", "url": "", "tooltip": "", "icon": "dashboard", "asDropdown": True, "includeVars": False,
     "keepTime": True, "tags": ["mcp-hangar"], "targetBlank": False},
]


def annotation(name, expr, color, title, text, tags, at_value=False):
    return {"name": name, "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": color, "expr": expr, "titleFormat": title,
            "textFormat": text, "tagKeys": tags, "useValueForTime": at_value, "step": "15s"}


def dashboard(uid, title, description, tags, panels, templating, annotations):
    return {"uid": uid, "title": title, "description": description, "tags": tags, "schemaVersion": 39, "version": 1, "editable": True,
            "graphTooltip": 1, "fiscalYearStartMonth": 0, "weekStart": "", "timezone": "browser", "refresh": "30s", "preload": False,
            "liveNow": False, "time": {"from": "now-6h", "to": "now"}, "timepicker": {}, "links": LINKS, "templating": templating,
            "annotations": {"list": annotations}, "panels": laid(panels)}


def ladder():
    """Attempts by rung and outcome, the narrowest rung first: one table, since the order is the point."""
    def of(rank, action):
        counted = f'sum by (outcome) (increase(hangar_medic_attempts_total{{{M}, action="{action}"}}[$__range]))'
        return f'label_replace({counted}, "rung", "{rank:02d} {action}", "", "")'
    expr = "\n  or ".join(of(rank, action) for rank, action in enumerate(RUNGS))
    matrix = {"id": "groupingToMatrix", "options": {"rowField": "rung", "columnField": "outcome", "valueField": "Value", "emptyValue": "zero"}}
    return table("The ladder: attempts by rung and outcome",
                 "Attempts in the chosen time, from the narrowest rung to the broadest. Down the table it gets more expensive.",
                 "short", [(f"round({expr})", "{{rung}} {{outcome}}")], 24, 11, {"rung\\outcome": "rung"}, transformations=[matrix],
                 thresholds=steps((None, GREY), (1, BLUE)), overrides=[column("recovered", ("color", {"mode": "fixed", "fixedColor": GREEN}),
                                                                             ("custom.cellOptions", {"type": "color-text"}))])


def overview():
    healthy = values(no=(0, RED), yes=(1, GREEN))
    fraction = steps((None, RED), (0.8, YELLOW), (0.95, GREEN))
    bad = steps((None, GREEN), (1, RED))
    to_server = link("${__data.fields.mcp_server}", "/d/mcp-hangar-medic-server?var-mcp_server=${__data.fields.mcp_server}&${datasource:queryparam}",
                     "This server's timeline")
    to_server["targetBlank"] = False
    return [
        row("Does it work?"),
        stat("Recoveries without a full restart", "fraction_avoided_full_restart: of all recoveries in the attempt log, those that needed no full "
             "restart. Never read it alone: what stayed dead is beside it.", "percentunit", f"fraction_avoided_full_restart{{{M}}}",
             "{{instance}}", thresholds=fraction, no_value="no recovery yet"),
        stat("Exhausted", "Open incidents whose ladder is spent: a person is needed.", "short", f"sum(hangar_medic_incidents_exhausted{{{M}}})",
             "exhausted", thresholds=bad),
        stat("Open incidents", "Incidents that are open now, whatever they wait for.", "short", f"sum(hangar_medic_incidents_open{{{M}}})", "open",
             thresholds=steps((None, GREEN), (1, YELLOW))),
        stat("Waits for a person", "Open incidents that are held until somebody approves.", "short",
             f'sum(hangar_medic_holds{{{M}, hold="approval_needed"}})', "approval needed", thresholds=bad),
        stat("Without a full restart, by counters", "The same fraction for the chosen time only, over all chosen instances.", "percentunit",
             f"1 - sum(increase(hangar_medic_recoveries_total{{{M}, {FULL}}}[$__range])) / sum(increase(hangar_medic_recoveries_total{{{M}}}[$__range]))",
             "in this time", thresholds=fraction, no_value="no recovery in this time"),
        stat("Ended by the daemon", "Of the incidents that ended in the chosen time, those that the daemon ended, not somebody else or luck.", "percentunit",
             f'sum(increase(hangar_medic_incidents_closed_total{{{M}, how="recovered"}}[$__range])) / sum(increase(hangar_medic_incidents_closed_total{{{M}}}[$__range]))',
             "recovered", no_value="none ended"),

        row("Now"),
        table("Open incidents", "Every server that has an open incident: where it stands and what holds it. A click goes to its timeline.", "short",
              [(f"hangar_medic_server_incident{{{M}}}", "{{mcp_server}}")], 12, 8, {"mcp_server": "server", "phase": "phase", "hold": "held by"},
              hide=["Time", "Value", "__name__", "job"], overrides=[column("server", ("links", [
                  {"title": "Timeline", "url": "/d/mcp-hangar-medic-server?var-mcp_server=${__value.raw}", "targetBlank": False}]))]),
        series("Open incidents by phase", "watching: seen, not yet acted on; held: see the holds; acting, settling: under way; exhausted: a person is needed.",
               "short", [(f"sum by (phase) (hangar_medic_incidents_open{{{M}}})", "{{phase}}")], stack=True),
        series("What holds them", "Open incidents by what holds them; the first gate that says no is counted. The runbook of holds has a sentence for each.",
               "short", [(f"sum by (hold) (hangar_medic_holds{{{M}}})", "{{hold}}")], stack=True),
        series("Dead servers by reason", "Servers that are dead now, by the reason that Hangar puts on no metric of its own.", "short",
               [(f"sum by (reason) (hangar_medic_incidents_open{{{M}}})", "{{reason}}")], stack=True),

        row("What was done"),
        ladder(),
        series("Attempts by outcome", "Attempts settled, by what verification made of them.", "short",
               [(f"sum by (outcome) (increase(hangar_medic_attempts_total{{{M}}}[$__rate_interval]))", "{{outcome}}")], stack=True, calcs=("sum",)),
        bars("Recoveries by reason", "Proved recoveries in the chosen time, by why the server had died.", "short",
             [(f"sum by (reason) (increase(hangar_medic_recoveries_total{{{M}}}[$__range]))", "{{reason}}")], width=12),
        heat("Time to recovery", "From a server's death to the end of the action that brought it back, once that was proved.", "hangar_medic_time_to_recovery_seconds"),
        heat("Time to detect", "From a server's death, as its source dates it, to the incident being opened.", "hangar_medic_time_to_detect_seconds"),
        series("Time to recovery and to detect, typical and slow", "Median and 95th percentile over the last hour.", "s", [
            (f"histogram_quantile(0.5, sum by (le) (increase(hangar_medic_time_to_recovery_seconds_bucket{{{M}}}[1h])))", "recovery, median"),
            (f"histogram_quantile(0.95, sum by (le) (increase(hangar_medic_time_to_recovery_seconds_bucket{{{M}}}[1h])))", "recovery, 95 %"),
            (f"histogram_quantile(0.5, sum by (le) (increase(hangar_medic_time_to_detect_seconds_bucket{{{M}}}[1h])))", "detection, median"),
            (f"histogram_quantile(0.95, sum by (le) (increase(hangar_medic_time_to_detect_seconds_bucket{{{M}}}[1h])))", "detection, 95 %"),
        ], width=8),
        series("Incidents opened and closed", "Opened by the reason known then; closed by how: recovered by the daemon, healed by itself, or cancelled.", "short", [
            (f"sum by (reason) (increase(hangar_medic_incidents_total{{{M}}}[$__rate_interval]))", "opened: {{reason}}"),
            (f"sum by (how) (increase(hangar_medic_incidents_closed_total{{{M}}}[$__rate_interval]))", "closed: {{how}}"),
        ], calcs=("sum",)),
        series("Recoveries by action", "Proved recoveries by the action that brought the server back.", "short",
               [(f"sum by (action) (increase(hangar_medic_recoveries_total{{{M}}}[$__rate_interval]))", "{{action}}")], stack=True, calcs=("sum",)),

        row("Brakes"),
        stat("Storm", "Whether so many servers died at once that all but one are held.", "none", f"max(hangar_medic_storm_active{{{M}}})", "storm",
             mappings=values(no=(0, GREEN), yes=(1, RED)), thresholds=bad),
        stat("Hold orders", "Servers that were stopped deliberately and stay down until somebody starts them.", "short",
             f"sum(hangar_medic_hold_orders{{{M}}})", "stopped", thresholds=steps((None, GREEN), (1, YELLOW))),
        stat("Mode", "act: it does what it plans; observe: it only writes down what it would do.", "none", f"hangar_medic_mode{{{M}}} == 1", "{{mode}}", text="name"),
        stat("Pauses", "Pauses that people set: of everything, and of single servers.", "short", f"sum by (scope) (hangar_medic_pauses{{{M}}})", "{{scope}}", width=6,
             thresholds=steps((None, GREEN), (1, YELLOW)), text="value_and_name"),
        series("What people asked for", "Approvals and break-glass grants by what became of them, and restart requests by verdict.", "short", [
            (f"sum by (event) (increase(hangar_medic_approvals_total{{{M}}}[$__rate_interval]))", "approval: {{event}}"),
            (f"sum by (event) (increase(hangar_medic_break_glass_total{{{M}}}[$__rate_interval]))", "break-glass: {{event}}"),
            (f"sum by (verdict) (increase(hangar_medic_restart_requests_total{{{M}}}[$__rate_interval]))", "request: {{verdict}}"),
        ], width=24, calcs=("sum",)),

        row("The daemon itself"),
        stat("Sees Hangar", "Whether the last read of Hangar's metrics succeeded.", "none", f"min(hangar_medic_hangar_up{{{M}}})", "sees Hangar", mappings=healthy,
             thresholds=steps((None, RED), (1, GREEN))),
        stat("Can write its log", "Whether the attempt log took its last write. If not, nothing is done.", "none",
             f"min(hangar_medic_attempt_log_writable{{{M}}})", "log is writable", mappings=healthy, thresholds=steps((None, RED), (1, GREEN))),
        stat("Configuration", "Whether the last load of the configuration succeeded.", "none", f"min(hangar_medic_config_last_reload_successful{{{M}}})",
             "loaded", mappings=healthy, thresholds=steps((None, RED), (1, GREEN))),
        stat("Certificate", "Whether the certificate files of the daemon's own address are in use as they are, or older ones.", "none",
             f"min(hangar_medic_web_tls_last_reload_successful{{{M}}})", "as on disk", mappings=healthy,
             thresholds=steps((None, RED), (1, GREEN))),
        stat("Loaded", "When the configuration in use was loaded.", "dateTimeFromNow",
             f"max(hangar_medic_config_last_reload_success_timestamp_seconds{{{M}}}) * 1000", "loaded"),
        stat("Records", "Records in the attempt log.", "short", f"sum(hangar_medic_attempt_log_records_total{{{M}}})", "records"),
        table("Builds", "Which build runs where, and the hash of its configuration: instances of one fleet should agree.", "none",
              [(f"hangar_medic_build_info{{{M}}}", "build"), (f"hangar_medic_config_hash{{{M}}}", "hash")], 4, 4,
              {"instance": "instance", "version": "version", "Value #B": "configuration"}, hide=["Time", "Value #A", "__name__", "job", "__name__ 1", "__name__ 2", "job 1", "job 2"],
              transformations=[{"id": "joinByField", "options": {"byField": "instance", "mode": "outer"}}]),
        series("Age of what each source said", "Seconds since each source was last heard. A source that is off has no line.", "s",
               [(f"max by (source) (hangar_medic_signal_age_seconds{{{M}}})", "{{source}}")]),
        series("Reads of Hangar that failed", "By what was read and what came of it.", "short",
               [(f'sum by (kind, result) (increase(hangar_medic_hangar_reads_total{{{M}, result!="ok"}}[$__rate_interval]))', "{{kind}}: {{result}}")], calcs=("sum",)),
        series("Hangar's log", "Bytes not yet read; parts that were lost before they were read; lines that are no events.", "short", [
            (f"sum(hangar_medic_log_lag_bytes{{{M}}})", "bytes behind"),
            (f"sum(increase(hangar_medic_log_gaps_total{{{M}}}[$__rate_interval]))", "parts lost"),
            (f"sum(increase(hangar_medic_log_lines_skipped_total{{{M}}}[$__rate_interval]))", "lines skipped"),
            (f"sum(increase(hangar_medic_classification_disagreements_total{{{M}}}[$__rate_interval]))", "sources disagreed"),
        ]),
        series("Alertmanager's webhook", "Deliveries by answer; alerts received, dropped as not valid, and left out by Alertmanager itself.", "short", [
            (f"sum by (code) (increase(hangar_medic_webhook_requests_total{{{M}}}[$__rate_interval]))", "answered {{code}}"),
            (f"sum(increase(hangar_medic_webhook_alerts_total{{{M}}}[$__rate_interval]))", "alerts"),
            (f"sum(increase(hangar_medic_webhook_alerts_dropped_total{{{M}}}[$__rate_interval]))", "dropped"),
            (f"sum(increase(hangar_medic_webhook_alerts_truncated_total{{{M}}}[$__rate_interval]))", "left out"),
        ]),
        series("Time of one plan", "Seconds that the engine takes to decide, typical and slow.", "s", [
            (f"histogram_quantile(0.5, sum by (le) (rate(hangar_medic_engine_plan_seconds_bucket{{{M}}}[$__rate_interval])))", "median"),
            (f"histogram_quantile(0.99, sum by (le) (rate(hangar_medic_engine_plan_seconds_bucket{{{M}}}[$__rate_interval])))", "99 %"),
        ]),
        series("Plans", "How often the engine planned, per second.", "ops", [(f"sum by (instance) (rate(hangar_medic_engine_plans_total{{{M}}}[$__rate_interval]))", "{{instance}}")]),
    ]


def server():
    S = 'mcp_server="$mcp_server"'
    states = values(cold=(0, BLUE), initializing=(1, YELLOW), ready=(2, GREEN), degraded=(3, "orange"), dead=(4, RED))
    there = values(yes=(1, "orange"))
    return [
        row("$mcp_server"),
        stat("State", "Hangar's gauge. It lags: a dead server that is being started still reads dead.", "none", f"max(mcp_hangar_mcp_server_state{{{S}}})", "state",
             mappings=states, thresholds=steps((None, BLUE), (2, GREEN), (3, YELLOW), (4, RED)), no_value="no series: never started, or Hangar restarted"),
        stat("Last seen working", "Time of the last passing health check, completed start or successful call.", "dateTimeFromNow",
             f"max(mcp_hangar_mcp_server_last_healthy_timestamp_seconds{{{S}}}) * 1000", "last healthy", no_value="never"),
        stat("Dead because", "The reason, while it is dead.", "none", f"hangar_medic_server_dead{{{S}}}", "{{reason}}", text="name", no_value="not dead",
             thresholds=steps((None, RED))),
        stat("Its incident", "Where it stands and what holds it.", "none", f"hangar_medic_server_incident{{{S}}}", "{{phase}}, held by {{hold}}", text="name",
             no_value="none open", thresholds=steps((None, "orange"))),
        stat("Owner", "Whom policy.owners names.", "none", f"hangar_medic_server_info{{{S}}}", "{{owner}}", text="name", no_value="nobody is named"),
        stat("Failures in a row", "Consecutive failures as Hangar counts them.", "short", f"max(mcp_hangar_health_check_consecutive_failures{{{S}}})", "failures",
             no_value="0", thresholds=steps((None, GREEN), (1, YELLOW), (3, RED))),

        row("Timeline"),
        timeline("State", "Hangar's gauge over time, by the replica that reports it.", [(f"mcp_hangar_mcp_server_state{{{S}}}", "{{instance}}")], states),
        timeline("Incident", "One bar for each phase and hold that its incident stood in. The marks are attempts.",
                 [(f"hangar_medic_server_incident{{{S}}}", "{{phase}}, held by {{hold}}")], there, height=7),
        timeline("Reason", "Why it was dead.", [(f"hangar_medic_server_dead{{{S}}}", "{{reason}}")], there),
        table("Newest attempts", "The newest attempt of each action in its open or last incident, and what came of it.", "dateTimeAsIso",
              [(f"hangar_medic_server_attempt_timestamp_seconds{{{S}}} * 1000", "{{action}}")], 12, 8,
              {"action": "action", "outcome": "outcome", "Value": "started"}, hide=["Time", "__name__", "job", "mcp_server"]),
        series("Since last seen working", "Seconds since Hangar last saw it working; 15 minutes are an alert.", "s",
               [(f"time() - max by (instance) (mcp_hangar_mcp_server_last_healthy_timestamp_seconds{{{S}}})", "{{instance}}")]),
        series("Stops by reason", "Stops as Hangar counts them; any but idle and max_retries_exceeded is an order that the daemon respects.", "short",
               [(f"sum by (reason) (increase(mcp_hangar_mcp_server_stops_total{{{S}}}[$__rate_interval]))", "{{reason}}")], calcs=("sum",)),
        series("Health checks", "Hangar's checks of this server, by result.", "short",
               [(f"sum by (result) (increase(mcp_hangar_health_checks_total{{{S}}}[$__rate_interval]))", "{{result}}")], calcs=("sum",)),
    ]


def boards():
    instance = query_variable("instance", "Daemon", "label_values(hangar_medic_build_info, instance)", True)
    one_server = query_variable("mcp_server", "Server", "label_values(mcp_hangar_mcp_server_state, mcp_server)", False)
    attempts = "hangar_medic_server_attempt_timestamp_seconds{%s} * 1000"
    alerts = 'ALERTS{alertname=~"MCPHangar.*", alertstate="firing"%s}'
    marks = [
        annotation("Alerts", alerts % "", RED, "{{alertname}}", "{{mcp_server}}", "severity"),
        annotation("Broad restarts", f'changes(hangar_medic_attempts_total{{{M}, action=~"rolling_mcp_restart|full_mcp_restart|host_restart"}}[1m]) > 0',
                   "orange", "{{action}}", "{{outcome}}", "action"),
    ]
    server_marks = [
        annotation("Attempts", attempts % 'mcp_server="$mcp_server"', BLUE, "{{action}}", "{{outcome}}", "action,outcome", at_value=True),
        annotation("Alerts", alerts % ', mcp_server="$mcp_server"', RED, "{{alertname}}", "{{mcp_server}}", "severity"),
    ]
    return {
        "hangar-medic-overview": dashboard(
            "mcp-hangar-medic", "MCP Hangar / Medic", "What hangar-medic sees, does and refuses to do.", ["mcp-hangar", "medic"], overview(),
            variables(instance), marks),
        "hangar-medic-server": dashboard(
            "mcp-hangar-medic-server", "MCP Hangar / Medic: one server", "One MCP server's timeline: state, incidents, attempts, holds.",
            ["mcp-hangar", "medic-server"], server(), variables(one_server), server_marks),
    }
