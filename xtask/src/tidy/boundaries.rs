//! Boundaries: each library has one door, one file reads the time, and pure crates stay pure.
//!
//! Cargo enforces boundaries between crates; this rule enforces them between files and libraries.

use super::{
    Finding,
    mentions::{Mention, mentions},
    tree::Tree,
};

/// Names that only some places may use.
struct Boundary {
    /// Paths in full, or as written where a glob import hides the rest. `name::` is a crate.
    names: &'static [&'static str],
    /// Files that the rule is about, by the start of their path.
    within: &'static [&'static str],
    /// The files among them that may use the names.
    except: &'static [&'static str],
    /// Whether tests must follow the rule too.
    tests_too: bool,
    /// What to do instead.
    advice: &'static str,
}

const BOUNDARIES: &[Boundary] = &[
    Boundary {
        names: &["raft::"],
        within: &["crates/"],
        except: &["crates/replica/", "crates/sim/"],
        tests_too: true,
        advice: "only crates/replica names the consensus library; go through taskyard_replica",
    },
    Boundary {
        names: &["raft_engine::"],
        within: &["crates/"],
        except: &["crates/server/src/log.rs", "crates/server/src/log/"],
        tests_too: true,
        advice: "only crates/server/src/log.rs and log/ name the log library; go through them",
    },
    Boundary {
        names: &["fjall::"],
        within: &["crates/"],
        except: &["crates/server/src/checkpoint.rs", "crates/server/src/checkpoint/"],
        tests_too: true,
        advice: "only crates/server/src/checkpoint.rs and checkpoint/ name the checkpoint library; go through them",
    },
    Boundary {
        names: &["taskyard_proto::", "axum::", "tonic::"],
        within: &["crates/server/src/"],
        except: &["crates/server/src/front.rs", "crates/server/src/front/"],
        tests_too: false,
        advice: "only crates/server/src/front knows wire formats; let the broker speak in its own types",
    },
    Boundary {
        names: &[
            "std::time::SystemTime::now",
            "std::time::Instant::now",
            "SystemTime::now",
            "Instant::now",
            "jiff::Timestamp::now",
            "jiff::Zoned::now",
        ],
        within: &["crates/server/src/"],
        except: &["crates/server/src/clock.rs"],
        tests_too: false,
        advice: "only crates/server/src/clock.rs reads the time; take a Clock or a Timestamp",
    },
    Boundary {
        names: &[
            "std::time::SystemTime",
            "std::time::Instant",
            "SystemTime",
            "Instant",
            "std::fs",
            "std::net",
            "std::thread",
            "std::env",
            "std::process",
            "rand::",
            "getrandom::",
            "tokio::",
            "tracing::",
            "print!",
            "println!",
            "eprint!",
            "eprintln!",
        ],
        within: &["crates/machine/src/", "crates/replica/src/"],
        except: &[],
        tests_too: false,
        advice: "machine and replica are pure: no clock, I/O, randomness, threads or logging; \
                 let the caller do it and pass the value in",
    },
    Boundary {
        names: &[
            "std::collections::HashMap",
            "std::collections::HashSet",
            "HashMap",
            "HashSet",
            "hashbrown::",
        ],
        within: &["crates/machine/src/", "crates/replica/src/"],
        except: &[],
        tests_too: false,
        advice: "its order differs from run to run, so replicas would; use a BTreeMap",
    },
    Boundary {
        names: &["f32", "f64"],
        within: &["crates/machine/src/"],
        except: &[],
        tests_too: false,
        advice: "the machine computes in integers, so that every replica gets the same; \
                 use thousandths",
    },
    Boundary {
        names: &["dbg!", "todo!", "unimplemented!"],
        within: &[""],
        except: &[],
        tests_too: true,
        advice: "unfinished code stays off main; finish it or take it out",
    },
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in tree.sources() {
        let boundaries: Vec<&Boundary> = BOUNDARIES.iter().filter(|b| b.is_about(path)).collect();
        if boundaries.is_empty() {
            continue;
        }
        for mention in mentions(source) {
            let broken = boundaries.iter().find_map(|b| Some((b.broken_by(&mention)?, b.advice)));
            if let Some((name, advice)) = broken {
                let name = name.trim_end_matches("::");
                findings.push(Finding::new(path, mention.line, format!("names {name}: {advice}")));
            }
        }
    }
    findings
}

impl Boundary {
    fn is_about(&self, path: &str) -> bool {
        let starts = |list: &[&str]| list.iter().any(|start| path.starts_with(start));
        starts(self.within) && !starts(self.except)
    }

    fn broken_by(&self, mention: &Mention) -> Option<&'static str> {
        let exempt = mention.test && !self.tests_too;
        self.names.iter().copied().find(|name| !exempt && mention.names(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_library_has_one_door() {
        for (path, text, found) in [
            ("crates/server/src/shard.rs", "use raft::RawNode;", 1),
            ("crates/server/tests/a.rs", "use raft::RawNode;", 1),
            ("crates/replica/src/replica.rs", "use raft::RawNode;", 0),
            ("crates/sim/src/main.rs", "use raft::eraftpb;", 0),
            ("crates/server/src/log.rs", "use raft_engine::Engine;", 0),
            ("crates/server/src/node.rs", "let e = raft_engine::Engine::open(c);", 1),
            ("crates/server/src/checkpoint/spill.rs", "use fjall::Keyspace;", 0),
            ("crates/server/src/node.rs", "use {std::io, fjall::Keyspace};", 1),
            ("crates/server/src/node.rs", "let raft = self.raft; // raft::RawNode", 0),
            ("crates/server/src/front/grpc.rs", "use tonic::Status;", 0),
            ("crates/server/src/broker.rs", "use taskyard_proto::v1;", 1),
        ] {
            assert_eq!(lines(path, text).len(), found, "{path}: {text}");
        }
    }

    #[test]
    fn only_the_clock_reads_time() {
        let std = "use std::time::{Duration, Instant};\nfn a() {\n    Instant::now();\n}";
        assert_eq!(lines("crates/server/src/node.rs", std), [3]);
        assert_eq!(lines("crates/server/src/clock.rs", std), [0usize; 0]);
        assert_eq!(lines("crates/client/src/worker.rs", std), [0usize; 0]);
        let tokio = "use tokio::time::Instant;\nfn a() { Instant::now(); }";
        assert_eq!(lines("crates/server/src/node.rs", tokio), [0usize; 0]);
        let test = "#[cfg(test)]\nmod tests {\n    fn a() { std::time::Instant::now(); }\n}";
        assert_eq!(lines("crates/server/src/node.rs", test), [0usize; 0]);
    }

    #[test]
    fn the_machine_stays_pure() {
        let path = "crates/machine/src/a.rs";
        for text in [
            "use std::time::Instant;",
            "use std::{fmt, fs};",
            "let x = std::net::TcpStream::connect(y);",
            "let x = rand::random();",
            "use tokio::sync::mpsc;",
            "let x: std::collections::HashMap<u8, u8>;",
            "let x: f64 = 0.5;",
            "println!(\"x\");",
        ] {
            assert_eq!(lines(path, text), [1], "{text}");
        }
        assert_eq!(lines(path, "use std::time::Duration; // HashMap, f64"), [0usize; 0]);
        assert_eq!(lines("crates/machine/tests/a.rs", "use std::fs;"), [0usize; 0]);
        assert_eq!(lines("crates/replica/src/a.rs", "use std::fs;"), [1]);
    }

    #[test]
    fn unfinished_code_is_found_in_tests_too() {
        let text = "fn a() { todo!() }\nfn b() { unimplemented!(\"x\") }\n// todo!()\n\"dbg!(1)\"";
        assert_eq!(lines("crates/cli/tests/a.rs", text), [1, 2]);
    }
}
