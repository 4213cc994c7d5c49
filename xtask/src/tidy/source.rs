//! A Rust file taken apart: code, comments and string literals, line by line, and which lines are
//! tests.
//!
//! Rules must not match a word in a string or a comment, so this is a lexer. It is not a parser,
//! and only tells the three apart.

/// One line of a Rust file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The line with comments and the insides of literals blanked.
    pub(super) code: String,
    /// The text of its comments.
    pub(super) comment: String,
    /// Literals that start on the line, without their quotes.
    pub(super) strings: Vec<String>,
    /// Whether the line belongs to a test: a file of tests, or a `#[cfg(test)]` item.
    pub(super) test: bool,
}

/// A Rust file, line by line.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) lines: Vec<Line>,
}

impl Source {
    pub(super) fn parse(path: &str, text: &str) -> Source {
        let mut lines = Lexer::new(text).run();
        let whole = is_test_file(path);
        let tests = test_lines(&lines);
        for (line, test) in lines.iter_mut().zip(tests) {
            line.test = whole || test;
        }
        Source { lines }
    }

    /// Lines with their numbers, from 1.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(index, line)| (index + 1, line))
    }
}

fn is_test_file(path: &str) -> bool {
    let folder = |name: &str| path.contains(&format!("/{name}/"));
    folder("tests") || folder("benches") || folder("examples") || path.ends_with("/tests.rs")
}

/// For each line, whether it is in an item behind `#[cfg(test)]`.
fn test_lines(lines: &[Line]) -> Vec<bool> {
    let mut tests = vec![false; lines.len()];
    let mut at = 0;
    while at < lines.len() {
        if !lines[at].code.contains("#[cfg(test)]") {
            at += 1;
            continue;
        }
        let end = item_end(lines, at);
        tests[at..=end].fill(true);
        at = end + 1;
    }
    tests
}

/// The last line of the item whose attribute is on line `start`.
fn item_end(lines: &[Line], start: usize) -> usize {
    let mut depth = 0usize;
    let mut opened = false;
    for (index, line) in lines.iter().enumerate().skip(start) {
        let code = match index == start {
            true => line.code.split_once("#[cfg(test)]").map_or("", |(_, rest)| rest),
            false => &line.code,
        };
        for c in code.chars() {
            match c {
                '{' => (depth, opened) = (depth + 1, true),
                '}' => depth = depth.saturating_sub(1),
                ';' if !opened => return index,
                _ => {}
            }
            if opened && depth == 0 {
                return index;
            }
        }
    }
    lines.len() - 1
}

struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    lines: Vec<Line>,
    /// The last character of code, to tell `r"` from `var"` and a lifetime from a character.
    before: char,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str) -> Lexer<'a> {
        Lexer { rest: text.chars().peekable(), lines: vec![Line::default()], before: '\n' }
    }

    fn run(mut self) -> Vec<Line> {
        while let Some(c) = self.rest.next() {
            match (c, self.rest.peek().copied()) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(0, true),
                ('r', Some('"' | '#')) if !is_word(self.before) || self.before == 'b' => {
                    self.raw_string()
                }
                ('\'', _) => self.quote(),
                _ => self.code(c),
            }
        }
        if self.lines.last() == Some(&Line::default()) {
            self.lines.pop();
        }
        self.lines
    }

    fn line(&mut self) -> &mut Line {
        self.lines.last_mut().expect("there is always a line")
    }

    fn code(&mut self, c: char) {
        self.before = c;
        match c {
            '\n' => self.lines.push(Line::default()),
            _ => self.line().code.push(c),
        }
    }

    fn line_comment(&mut self) {
        self.line().comment.push('/');
        while let Some(c) = self.rest.next_if(|&c| c != '\n') {
            self.line().comment.push(c);
        }
    }

    fn block_comment(&mut self) {
        self.rest.next();
        let mut depth = 1;
        while let Some(c) = self.rest.next() {
            match (c, self.rest.peek().copied()) {
                ('*', Some('/')) => {
                    self.rest.next();
                    depth -= 1;
                    if depth == 0 {
                        return;
                    }
                }
                ('/', Some('*')) => {
                    self.rest.next();
                    depth += 1;
                }
                ('\n', _) => self.lines.push(Line::default()),
                _ => self.line().comment.push(c),
            }
        }
    }

    /// After `r`: a raw string with any number of `#`, or a raw identifier.
    fn raw_string(&mut self) {
        let mut hashes = 0;
        while self.rest.next_if_eq(&'#').is_some() {
            hashes += 1;
        }
        match self.rest.next_if_eq(&'"') {
            Some(_) => self.string(hashes, false),
            None => self.code('r'),
        }
    }

    /// After the opening quote, up to a closing one that is followed by `hashes` of `#`.
    fn string(&mut self, hashes: usize, escapes: bool) {
        self.code('"');
        let starts_at = self.lines.len() - 1;
        let mut content = String::new();
        while let Some(c) = self.rest.next() {
            match c {
                '\\' if escapes => {
                    content.push(c);
                    if let Some(escaped) = self.rest.next() {
                        content.push(escaped);
                        if escaped == '\n' {
                            self.lines.push(Line::default());
                        }
                    }
                }
                '"' if self.closes(hashes) => break,
                '\n' => {
                    content.push(c);
                    self.lines.push(Line::default());
                }
                _ => content.push(c),
            }
        }
        self.lines[starts_at].strings.push(content);
        self.code('"');
    }

    /// Takes the `#` that close a raw string, if all are there.
    fn closes(&mut self, hashes: usize) -> bool {
        let mut ahead = self.rest.clone();
        if !(0..hashes).all(|_| ahead.next() == Some('#')) {
            return false;
        }
        self.rest = ahead;
        true
    }

    /// After `'`: a character literal, or the start of a lifetime.
    fn quote(&mut self) {
        let mut ahead = self.rest.clone();
        let next_two = (ahead.next(), ahead.next());
        let character = matches!(next_two, (Some('\\'), _) | (Some(_), Some('\'')));
        self.code('\'');
        if !character {
            return;
        }
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => drop(self.rest.next()),
                '\'' => break,
                _ => {}
            }
        }
        self.code('\'');
    }
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(text: &str) -> Vec<String> {
        Source::parse("src/a.rs", text).lines.into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        for (text, code) in [
            ("let a = 1; // HashMap", "let a = 1; "),
            ("let a = /* x /* y */ z */ 1;", "let a =  1;"),
            (r#"let a = "x // \" y"; b"#, r#"let a = ""; b"#),
            (r##"let a = r#"x " y"#; b"##, r#"let a = ""; b"#),
            (r#"let a = br"x\"; b"#, r#"let a = b""; b"#),
            (r"let a = '\''; let b = '{';", "let a = ''; let b = '';"),
            ("fn a<'a>(x: &'a str) {}", "fn a<'a>(x: &'a str) {}"),
            (r#"let var = for_r"x";"#, r#"let var = for_r"";"#),
        ] {
            assert_eq!(code_of(text), [code], "{text}");
        }
    }

    #[test]
    fn literals_and_comments_are_kept_with_their_line() {
        let source = Source::parse("src/a.rs", "// one\nlet a = [\"x\",\n  \"y\\n\"]; // two\n");
        let line = |n: usize| (source.lines[n].comment.as_str(), source.lines[n].strings.join("|"));
        assert_eq!(line(0), ("// one", String::new()));
        assert_eq!(line(1), ("", "x".to_string()));
        assert_eq!(line(2), ("// two", "y\\n".to_string()));
        assert_eq!(source.lines.len(), 3);
    }

    #[test]
    fn a_string_over_several_lines_keeps_the_line_numbers() {
        let code = code_of("let a = \"x\n y \\\n z\";\nlet b = 1;\n");
        assert_eq!(code, ["let a = \"", "", "\";", "let b = 1;"]);
    }

    #[test]
    fn test_items_are_known_as_tests() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n\
                    #[cfg(test)]\nuse x::y;\nfn d() {}\n";
        let source = Source::parse("src/a.rs", text);
        let tests: Vec<bool> = source.lines.iter().map(|line| line.test).collect();
        assert_eq!(tests, [false, true, true, true, true, false, true, true, false]);
        assert!(Source::parse("crates/x/tests/a.rs", "fn a() {}").lines[0].test);
    }
}
