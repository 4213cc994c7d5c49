//! Files with and without mistakes.

use super::*;

/// The mistakes in a file, as `line: what`.
fn problems(text: &str) -> Vec<String> {
    let problems = parse(text).expect_err(text);
    problems.into_iter().map(|Problem { line, what }| format!("{line}: {what}")).collect()
}

/// A parsed file as text.
fn shown(text: &str) -> String {
    format!("{:?}", parse(text).map_err(|problems| format!("{problems:?}")).unwrap())
}

const YAML: &str = "\
name: thumbnails
retention_ms: 60000
nodes:
  - name: fetch
    type: http_get
    queue: net
    payload: {url: 'https://example.com/a.jpg', tries: 3}
  - name: small
    type: resize
    payload: [100, 80.5, no, null, true]
    retry: {policy: fixed, max_attempts: 3, delay_ms: 1000}
    depends_on: [fetch]
  - name: publish
    type: publish
    depends_on:
      - small
      - name: fetch
        on_failure: run
";

#[test]
fn yaml_and_json_say_the_same() {
    let json = r#"{
            "name": "thumbnails", "retention_ms": 60000, "nodes": [
                {"name": "fetch", "type": "http_get", "queue": "net",
                 "payload": {"tries":3,"url":"https://example.com/a.jpg"}},
                {"name": "small", "type": "resize", "payload": [100,80.5,"no",null,true],
                 "retry": {"policy": "fixed", "max_attempts": 3, "delay_ms": 1000},
                 "depends_on": ["fetch"]},
                {"name": "publish", "type": "publish",
                 "depends_on": ["small", {"name": "fetch", "on_failure": "run"}]}
            ]}"#;
    let outline = |text| {
        let mut reader = Reader::default();
        let outline = reader.flow(text);
        assert_eq!(reader.problems, []);
        let node = |node: &Node| {
            let parents = node.depends_on.iter();
            let parents: Vec<_> =
                parents.map(|edge| (edge.name.clone(), edge.on_failure)).collect();
            format!("{:?} {parents:?} {:?}", node.name, node.task)
        };
        let nodes: Vec<String> = outline.nodes.iter().map(node).collect();
        (outline.name, outline.retention_ms, nodes)
    };
    assert_eq!(outline(YAML), outline(json));
    assert!(shown(YAML).contains("len: 3"), "{}", shown(YAML));
    assert_eq!(shown(YAML), shown(json));
}

#[test]
fn numbers_of_a_json_file_keep_all_their_digits() {
    let node = r#"{"name": "a", "type": "t", "payload": 1.50}"#;
    let outline = Reader::default().flow(&format!("{{\"nodes\": [{node}]}}"));
    let task = outline.nodes[0].task.as_ref().unwrap();
    assert!(format!("{task:?}").contains("1.50"), "{task:?}");
}

#[test]
fn every_mistake_has_its_line_and_names() {
    for (text, expected) in [
        ("nodes: []\n", &["1: the flow has no nodes: give at least one"][..]),
        ("nodes:\n  - type: t\n", &["2: a node has no name: name every node of the flow"]),
        ("nodes:\n  - 7\n", &["2: a node is an object with name and type"]),
        (
            "nodes:\n  - {name: a}\n  - {name: b, type: t, priority: 12}\n",
            &[
                "2: node \"a\": it has no type: name the function that runs it",
                "3: node \"b\": priority 12 is not 0 to 9",
            ],
        ),
        (
            "nodes:\n  - {name: a, type: t}\n  - {name: a, type: t}\n",
            &["3: node \"a\" is named like the one in line 2"],
        ),
        (
            "nodes:\n  - {name: fetch, type: t}\n  - {name: b, type: t, depends_on: [fetsh, b]}\n",
            &[
                "3: node \"b\" depends on \"fetsh\", which is no node of the flow; did you mean \
                 \"fetch\"?",
                "3: node \"b\" depends on itself",
            ],
        ),
        (
            "nodes:\n  - {name: a, type: t}\n  - {name: b, type: t, depends_on: [a, {name: a, \
             on_failure: run}]}\n",
            &["3: node \"b\" depends on \"a\" twice"],
        ),
        (
            "nodes:
  - {name: start, type: t}
  - {name: a, type: t, depends_on: [start, c]}
  - {name: b, type: t, depends_on: [a]}
  - {name: c, type: t, depends_on: [b]}
  - {name: end, type: t, depends_on: [c]}
",
            &["3: nodes wait for each other: a -> b -> c -> a"],
        ),
        (
            "nodes:
  - {name: a, type: t, depends_on: [b]}
  - {name: b, type: t, depends_on: [a]}
  - {name: c, type: t, depends_on: [b, d]}
  - {name: d, type: t, depends_on: [c]}
",
            &[
                "2: nodes wait for each other: a -> b -> a",
                "4: nodes wait for each other: c -> d -> c",
            ],
        ),
    ] {
        assert_eq!(problems(text), expected, "{text}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let yaml = "\
nam: nightly
retention_ms: a day
nodes:
  - name: fetch
    type: http_get
    type: http_put
    pripority: 1
    priority: high
    delay_ms: 5
    run_at: 2031-05-01T09:30:00Z
    request_id: once
  - name: fetch
    unique: {key: a}
    retry: {policy: sometimes}
    timeout_ms: -1
    depends_on:
      - fetsh
      - {name: end, on_failure: explode}
  - 7
  - name: end
    type: t
    depends_on: [last]
  - name: last
    type: t
    depends_on: [end]
";
    let json = r#"{"nam": "nightly",
"retention_ms": "a day",
"nodes": [
  {"name": "fetch",
    "type": "http_get",
    "type": "http_put",
    "pripority": 1,
    "priority": "high",
    "delay_ms": 5,
    "run_at": "2031-05-01T09:30:00Z",
    "request_id": "once"},
  {"name": "fetch",
    "unique": {"key": "a"},
    "retry": {"policy": "sometimes"},
    "timeout_ms": -1,
    "depends_on": [
      "fetsh",
      {"name": "end", "on_failure": "explode"}]},
  7,
  {"name": "end",
    "type": "t",
    "depends_on": ["last"]},
  {"name": "last",
    "type": "t",
    "depends_on": ["end"]}
]}"#;
    let expected = [
        "1: the flow: \"nam\" is not known; did you mean name?",
        "2: the flow: retention_ms is \"a day\"; it must be a number of milliseconds",
        "4: node \"fetch\": it has both delay_ms and run_at: keep one",
        "6: node \"fetch\": type is given twice",
        "7: node \"fetch\": \"pripority\" is not known; did you mean priority?",
        "8: node \"fetch\": priority is \"high\"; it must be a number from 0 to 9",
        "11: node \"fetch\": no request_id in a flow, where another task might stand for it",
        "12: node \"fetch\": it has no type: name the function that runs it",
        "12: node \"fetch\" is named like the one in line 4",
        "13: node \"fetch\": no unique in a flow, where another task might stand for it",
        "14: node \"fetch\": retry: unknown variant `sometimes`",
        "15: node \"fetch\": timeout_ms is -1; it must be a number of milliseconds",
        "17: node \"fetch\" depends on \"fetsh\", which is no node of the flow; did you mean \
         \"fetch\"?",
        "18: node \"fetch\": depends_on has ",
        "19: a node is an object with name and type",
        "20: nodes wait for each other: end -> last -> end",
    ];
    for text in [yaml, json] {
        let found = problems(text);
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}, not {expected}");
        }
    }
}

#[test]
fn a_file_without_a_flow_is_refused_with_its_line() {
    for (text, line, part) in [
        ("", 1, "nodes"),
        ("7", 1, "nodes"),
        ("name: a\nnodes: 7\n", 2, "nodes is 7; it must be a list of nodes"),
        ("name: a\n", 1, "no nodes"),
        ("name: a\nnodes:\n  - {name: a, type: [}\n", 3, ""),
        ("{\"nodes\":\n [\n {]}", 3, "key must be a string"),
        ("nodes:\n  - {name: a, type: t, depends_on: b}\n", 2, "a list of names"),
    ] {
        let found = parse(text).expect_err(text);
        assert_eq!(found[0].line, line, "{text}: {found:?}");
        assert!(found[0].what.contains(part), "{text}: {found:?}");
        assert!(!found[0].what.contains("Options"), "{text}: {found:?}");
    }
}

#[test]
fn the_flows_of_the_documents_are_flows() {
    let document = include_str!("../../../../../docs/flows.md");
    let blocks: Vec<&str> = document.split("```yaml\n").skip(1).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let text = block.split("```").next().unwrap_or_default();
        assert!(parse(text).is_ok(), "{:?}", parse(text));
    }
}

#[test]
fn the_largest_flow_is_read() {
    let mut text = "nodes:\n".to_owned();
    for number in 0..10_000 {
        text += &format!("  - name: n{number}\n    type: t\n    queue: q\n    tags: [a, b]\n");
        text += "    retry: {policy: fixed, delay_ms: 5, max_attempts: 3}\n";
        text += "    payload: {a: 1, b: [1, 2, 3], c: {d: e, f: g}}\n";
        if number > 0 {
            text += &format!("    depends_on: [n{}]\n", number - 1);
        }
    }
    assert!(shown(&text).contains("len: 10000"));
}

#[test]
fn anchors_spare_repetition_and_bombs_are_refused() {
    let text = "nodes:\n  - &one {name: a, type: t, priority: 3}\n  - {<<: *one, name: b}\n";
    assert!(shown(text).contains("len: 2"));
    let mut bomb =
        "nodes:\n  - {name: a, type: t, payload: &a0 [x, x, x, x, x, x, x, x, x]}\n".to_owned();
    for number in 1..12 {
        let alias = format!("*a{}", number - 1);
        let aliases = vec![alias; 9].join(", ");
        bomb += &format!("  - {{name: n{number}, type: t, payload: &a{number} [{aliases}]}}\n");
    }
    assert!(parse(&bomb).is_err());
}
