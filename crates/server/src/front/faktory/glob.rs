//! Patterns like those of Redis: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a literal character.

/// A comparison of a text with a pattern that can be interrupted. It takes at most as many steps as
/// the product of both lengths.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    pattern: &'a [u8],
    text: &'a [u8],
    /// The positions in the pattern and in the text.
    p: usize,
    t: usize,
    /// The position of the last star, and where its match ends. Only the last star has to grow.
    star: Option<(usize, usize)>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(pattern: &'a [u8], text: &'a [u8]) -> Comparison<'a> {
        Comparison { pattern, text, p: 0, t: 0, star: None }
    }

    /// Takes up to `steps` steps. Returns whether the whole text fits, once that is known.
    pub(super) fn advance(&mut self, steps: usize) -> Option<bool> {
        let Comparison { pattern, text, p, t, star } = self;
        for _ in 0..steps {
            if *p == pattern.len() && *t == text.len() {
                return Some(true);
            }
            if pattern.get(*p) == Some(&b'*') {
                *star = Some((*p, *t));
                *p += 1;
                continue;
            }
            let step = text.get(*t).and_then(|byte| one(&pattern[*p..], *byte));
            if let Some(used) = step {
                *p += used;
                *t += 1;
                continue;
            }
            match *star {
                Some((at, swallowed)) if swallowed < text.len() => {
                    *star = Some((at, swallowed + 1));
                    (*p, *t) = (at + 1, swallowed + 1);
                }
                _ => return Some(false),
            }
        }
        None
    }
}

/// The length of the part of the pattern that fits this byte; `None` if none does.
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

    /// The result, which must not depend on the number of steps at a time.
    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        let whole = Comparison::new(pattern, text).advance(usize::MAX).unwrap();
        let mut by_steps = Comparison::new(pattern, text);
        let answer = std::iter::repeat_with(|| by_steps.advance(3)).flatten().next();
        assert_eq!(answer, Some(whole));
        whole
    }

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
    fn a_pattern_with_many_stars_ends_in_time() {
        let (pattern, text) = ("a*".repeat(64) + "b", "a".repeat(10_000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
