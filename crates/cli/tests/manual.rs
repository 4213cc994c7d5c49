//! Shell completions and man pages name the commands and options that the binary has.

use crate::yard::taskyard;
use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
};

/// Standard output of a command that must succeed.
fn printed(arguments: &[&str]) -> String {
    let ran = taskyard(arguments);
    assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
    ran.stdout
}

#[test]
fn bash_completes_commands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("taskyard.bash");
    fs::write(&script, printed(&["completions", "bash"])).unwrap();
    let completed = |words: &[&str]| {
        let last = words.len() - 1;
        let (current, before) = (words[last], words[last - 1]);
        let line = format!(
            "source {} && COMP_WORDS=({}) COMP_CWORD={last} && _taskyard taskyard '{current}' \
             {before} && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
        );
        let ran = Command::new("bash").args(["-c", &line]).stdin(Stdio::null()).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let words = String::from_utf8(ran.stdout).unwrap();
        words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["taskyard", "que"]), ["queue"]);
    assert_eq!(completed(&["taskyard", "queue", "pau"]), ["pause"]);
    assert!(completed(&["taskyard", "serve", "--"]).contains(&"--memory-max".to_owned()));
}

#[test]
fn every_shell_has_completions_and_another_word_is_refused() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(&["completions", shell]);
        for word in ["taskyard", "schedule", "memory-max"] {
            assert!(script.contains(word), "{shell} has no {word}");
        }
    }
    let ran = taskyard(&["completions", "cmd"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let ran = taskyard(&["man", pages.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let names = |text: &str| {
        let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
        let listed = listed.take_while(|line| !line.is_empty());
        let words = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let words = words.filter_map(|line| line.split_whitespace().next());
        words.filter(|word| *word != "help").map(str::to_owned).collect::<Vec<_>>()
    };
    let mut expected = BTreeSet::from(["taskyard.1".to_owned()]);
    for command in names(&printed(&["--help"])) {
        expected.insert(format!("taskyard-{command}.1"));
        let below = names(&printed(&[&command, "--help"]));
        expected.extend(below.iter().map(|word| format!("taskyard-{command}-{word}.1")));
    }
    assert!(expected.contains("taskyard-queue-pause.1"), "{expected:?}");
    let found = fs::read_dir(&pages).unwrap();
    let found = found.map(|page| page.unwrap().file_name().into_string().unwrap());
    let found: BTreeSet<String> = found.collect();
    assert_eq!(found, expected);
    assert!(ran.stderr.contains(&format!("{} man pages", found.len())), "{}", ran.stderr);
    let serve = fs::read_to_string(pages.join("taskyard-serve.1")).unwrap();
    assert!(serve.contains(".TH") && serve.contains("TASKYARD_MEMORY_MAX"), "{serve}");
    let first = printed(&["man"]);
    assert_eq!(first.trim(), fs::read_to_string(pages.join("taskyard.1")).unwrap().trim());
}
