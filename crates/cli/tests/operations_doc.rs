//! docs/operations.md is right: the commands of each section run unchanged, in one shell, in an
//! empty folder.

use crate::yard::pasted::{Place, blocks};
use std::collections::BTreeMap;

const DOCUMENT: &str = include_str!("../../../docs/operations.md");
/// The kind of the blocks that are run.
const RUN: &str = "sh test";
const SHOWN: [&str; 2] = ["sh", "text"];

macro_rules! sections {
    ($($name:ident: $title:literal,)*) => {
        $(
            #[test]
            fn $name() {
                run($title);
            }
        )*

        #[test]
        fn every_section_with_commands_is_run() {
            let found = commands();
            assert_eq!(found.keys().copied().collect::<Vec<_>>(), [$($title),*]);
        }
    };
}

// In alphabetical order.
sections! {
    backup_and_disaster: "Backup and disaster",
    forming: "Forming",
    growing: "Growing",
    moving_leaders: "Moving leaders",
    replacing_a_node_that_is_lost: "Replacing a node that is lost",
    shrinking: "Shrinking",
    stopping_and_upgrading: "Stopping and upgrading",
}

/// The commands of each section by heading, without sections that have none.
fn commands() -> BTreeMap<&'static str, String> {
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    for block in blocks(DOCUMENT) {
        let is_known = block.kind == RUN || SHOWN.contains(&block.kind);
        assert!(is_known, "{}: a block of {:?}", block.section, block.kind);
        if block.kind == RUN {
            *found.entry(block.section).or_default() += &block.text;
        }
    }
    found
}

/// Runs the commands of a section. Every one of them must succeed.
fn run(section: &str) {
    Place::new().paste("log", &commands()[section]).succeed(section);
}
