//! Patterns as Redis has them: `*`, `?`, `[a-z]`, `[^a]`, and `\` before what is meant as it stands.

/// Whether all of `text` fits. Takes at most as many steps as the product of both lengths.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how much it has swallowed: only it has to give way.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p == pattern.len() && t == text.len() {
            return true;
        }
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
            continue;
        }
        let step = text.get(t).and_then(|byte| one(&pattern[p..], *byte));
        if let Some(used) = step {
            p += used;
            t += 1;
            continue;
        }
        match star {
            Some((at, swallowed)) if swallowed < text.len() => {
                star = Some((at, swallowed + 1));
                (p, t) = (at + 1, swallowed + 1);
            }
            _ => return false,
        }
    }
}

/// How much of the pattern stands for this byte; `None` if it does not.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', class @ ..] => {
            let end = class.iter().position(|byte| *byte == b']').unwrap_or(class.len());
            let (is_not, members) = match &class[..end] {
                [b'^', members @ ..] => (true, members),
                members => (false, members),
            };
            let used = (1 + end + 1).min(pattern.len());
            (is_member(members, byte) != is_not).then_some(used)
        }
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

fn is_member(mut members: &[u8], byte: u8) -> bool {
    while !members.is_empty() {
        let (fits, rest) = match members {
            [low, b'-', high, rest @ ..] => {
                let (low, high) = (low.min(high), low.max(high));
                ((*low..=*high).contains(&byte), rest)
            }
            [single, rest @ ..] => (*single == byte, rest),
            [] => return false,
        };
        if fits {
            return true;
        }
        members = rest;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_redis() {
        for (pattern, text, fits) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("*b*", "abc", true),
            ("**b**", "abc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a[bx]c", "abc", true),
            ("a[^b]c", "abc", false),
            ("a[a-f]c", "aec", true),
            ("a[f-a]c", "aec", true),
            ("a[a-f]c", "agc", false),
            (r"a\*c", "a*c", true),
            (r"a\*c", "abc", false),
            (r"*\[1,2\]*", r#"{"args":[1,2]}"#, true),
            ("a[", "ab", false),
            ("a[b", "ab", true),
            ("\\", "\\", true),
            ("abc", "abcd", false),
            ("*\"jobtype\":\"Mail\"*", r#"{"jid":"1","jobtype":"Mail"}"#, true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_end_in_time() {
        let (pattern, text) = ("a*".repeat(64) + "b", "a".repeat(10_000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
