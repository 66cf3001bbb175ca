//! The subset of TOML that target files use, read strictly.
//!
//! In: text. Out: tables of values, each with its line. Taken: comments, `key = value`, `[table]`, `[[array of tables]]`,
//! strings, integers with underscores, booleans, arrays (over several lines too), inline tables. Not taken: dotted keys
//! outside headers, floats, dates, multi-line strings. A repeated key is an error. Never panics, whatever the text.
//! Source: TOML v1.0.0, <https://toml.io/en/v1.0.0>. An own reader, because every user builds it into a macro: serde and
//! toml would cost them seconds.

use std::fmt;

/// A problem of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

type Result<T> = std::result::Result<T, SyntaxError>;

/// A value with the line it begins on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Line, from 1.
    pub line: usize,
    /// The value.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A whole number.
    Int(i64),
    /// Text.
    Str(String),
    /// `true` or `false`.
    Bool(bool),
    /// A list.
    Array(Vec<Item>),
    /// A table.
    Table(Table),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Value::Int(_) => "an integer",
            Value::Str(_) => "a string",
            Value::Bool(_) => "a boolean",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
        })
    }
}

/// Keys and values in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Line of the header, from 1.
    pub line: usize,
    /// The entries.
    pub entries: Vec<(String, Item)>,
}

impl Table {
    fn find(&mut self, key: &str) -> Option<&mut Item> {
        self.entries.iter_mut().find(|(k, _)| k == key).map(|(_, item)| item)
    }

    fn insert(&mut self, key: String, item: Item) -> Result<()> {
        if self.find(&key).is_some() {
            return Err(SyntaxError { line: item.line, message: format!("\"{key}\" is set twice") });
        }
        self.entries.push((key, item));
        Ok(())
    }
}

/// Nesting beyond which a value is refused.
const MAX_DEPTH: usize = 16;

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

/// Reads a whole file.
pub fn parse(text: &str) -> Result<Table> {
    let mut reader = Reader { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let mut root = Table { line: 1, entries: Vec::new() };
    let mut path: Vec<String> = Vec::new();
    loop {
        reader.skip_blank();
        let line = reader.line;
        if reader.rest.is_empty() {
            return Ok(root);
        }
        if reader.take("[[") {
            path = reader.path("]]")?;
            open_array(&mut root, &path, line)?;
        } else if reader.take("[") {
            path = reader.path("]")?;
            open_table(&mut root, &path, line)?;
        } else {
            let key = reader.key()?;
            reader.expect("=")?;
            let item = reader.value(0)?;
            let table = walk(&mut root, &path, line)?;
            table.insert(key, item)?;
        }
        reader.end_of_line()?;
    }
}

/// The table at a path, its last element where the path names an array of tables.
fn walk<'a>(root: &'a mut Table, path: &[String], line: usize) -> Result<&'a mut Table> {
    let mut at = root;
    for key in path {
        if at.find(key).is_none() {
            at.entries.push((key.clone(), Item { line, value: Value::Table(Table { line, entries: Vec::new() }) }));
        }
        let item = at.find(key).map(|item| &mut item.value);
        at = match item {
            Some(Value::Table(t)) => t,
            Some(Value::Array(all)) => match all.last_mut().map(|item| &mut item.value) {
                Some(Value::Table(t)) => t,
                _ => return Err(SyntaxError { line, message: format!("\"{key}\" is not a table") }),
            },
            _ => return Err(SyntaxError { line, message: format!("\"{key}\" is not a table") }),
        };
    }
    Ok(at)
}

fn open_array(root: &mut Table, path: &[String], line: usize) -> Result<()> {
    let Some((last, before)) = path.split_last() else { return Ok(()) };
    let parent = walk(root, before, line)?;
    let fresh = Item { line, value: Value::Table(Table { line, entries: Vec::new() }) };
    match parent.find(last).map(|item| &mut item.value) {
        None => parent.insert(last.clone(), Item { line, value: Value::Array(vec![fresh]) }),
        Some(Value::Array(all)) if matches!(all.last(), Some(Item { value: Value::Table(_), .. })) => {
            all.push(fresh);
            Ok(())
        }
        Some(_) => Err(SyntaxError { line, message: format!("\"{last}\" is not an array of tables") }),
    }
}

fn open_table(root: &mut Table, path: &[String], line: usize) -> Result<()> {
    let Some((last, before)) = path.split_last() else { return Ok(()) };
    let fresh = Item { line, value: Value::Table(Table { line, entries: Vec::new() }) };
    walk(root, before, line)?.insert(last.clone(), fresh)
}

impl<'a> Reader<'a> {
    fn wrong<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(SyntaxError { line: self.line, message: message.into() })
    }

    fn advance(&mut self, n: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(n);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn take(&mut self, what: &str) -> bool {
        let found = self.rest.starts_with(what);
        if found {
            self.advance(what.len());
        }
        found
    }

    fn skip_space(&mut self) {
        let n = self.rest.len() - self.rest.trim_start_matches([' ', '\t']).len();
        self.advance(n);
    }

    /// Spaces, line ends and comments.
    fn skip_blank(&mut self) {
        loop {
            let n = self.rest.len() - self.rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            self.advance(n);
            if !self.rest.starts_with('#') {
                return;
            }
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn end_of_line(&mut self) -> Result<()> {
        self.skip_space();
        if self.rest.starts_with('#') {
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
        if self.rest.is_empty() || self.take("\n") || self.take("\r\n") {
            return Ok(());
        }
        self.wrong(format!("unexpected {}", self.shown()))
    }

    /// What comes next, for messages.
    fn shown(&self) -> String {
        let word: String = self.rest.chars().take_while(|c| !c.is_whitespace()).take(20).collect();
        if word.is_empty() { "end of line".to_owned() } else { format!("`{word}`") }
    }

    fn expect(&mut self, what: &str) -> Result<()> {
        self.skip_space();
        if self.take(what) {
            return Ok(());
        }
        self.wrong(format!("expected `{what}`, found {}", self.shown()))
    }

    fn key(&mut self) -> Result<String> {
        self.skip_space();
        if self.rest.starts_with(['"', '\'']) {
            return self.string();
        }
        let bare = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let n = self.rest.find(bare).unwrap_or(self.rest.len());
        if n == 0 {
            return self.wrong(format!("expected a name, found {}", self.shown()));
        }
        Ok(self.advance(n).to_owned())
    }

    fn path(&mut self, end: &str) -> Result<Vec<String>> {
        let mut path = vec![self.key()?];
        loop {
            self.skip_space();
            if self.take(end) {
                return Ok(path);
            }
            if path.len() >= MAX_DEPTH {
                return self.wrong("nested too deeply");
            }
            self.expect(".")?;
            path.push(self.key()?);
        }
    }

    fn value(&mut self, depth: usize) -> Result<Item> {
        self.skip_space();
        let line = self.line;
        if depth > MAX_DEPTH {
            return self.wrong("nested too deeply");
        }
        let value = if self.rest.starts_with(['"', '\'']) {
            Value::Str(self.string()?)
        } else if self.take("[") {
            Value::Array(self.array(depth)?)
        } else if self.take("{") {
            Value::Table(self.inline_table(depth, line)?)
        } else {
            self.word()?
        };
        Ok(Item { line, value })
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Item>> {
        let mut all = Vec::new();
        loop {
            self.skip_blank();
            if self.take("]") {
                return Ok(all);
            }
            all.push(self.value(depth + 1)?);
            self.skip_blank();
            if !self.take(",") && !self.rest.starts_with(']') {
                return self.wrong(format!("expected `,` or `]`, found {}", self.shown()));
            }
        }
    }

    fn inline_table(&mut self, depth: usize, line: usize) -> Result<Table> {
        let mut table = Table { line, entries: Vec::new() };
        self.skip_space();
        if self.take("}") {
            return Ok(table);
        }
        loop {
            let key = self.key()?;
            self.expect("=")?;
            table.insert(key, self.value(depth + 1)?)?;
            self.skip_space();
            if self.take("}") {
                return Ok(table);
            }
            self.expect(",")?;
        }
    }

    fn string(&mut self) -> Result<String> {
        let literal = self.rest.starts_with('\'');
        if self.rest.starts_with("\"\"\"") || self.rest.starts_with("'''") {
            return self.wrong("strings over several lines are not supported");
        }
        self.advance(1);
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' if !literal => return self.closed(at, text),
                '\'' if literal => return self.closed(at, text),
                '\n' => break,
                '\\' if !literal => match chars.next().map(|(_, c)| c) {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some(c @ ('"' | '\\')) => text.push(c),
                    _ => return self.wrong("only the escapes \\\", \\\\, \\n and \\t are supported"),
                },
                c if c.is_control() && c != '\t' => return self.wrong("a control character in a string"),
                c => text.push(c),
            }
        }
        self.wrong("a string without an end")
    }

    fn closed(&mut self, at: usize, text: String) -> Result<String> {
        self.advance(at + 1);
        Ok(text)
    }

    /// A boolean or an integer.
    fn word(&mut self) -> Result<Value> {
        let n = self.rest.find(|c: char| c.is_whitespace() || ",]}#".contains(c)).unwrap_or(self.rest.len());
        let word = &self.rest[..n];
        let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
        let value = match word {
            "" => return self.wrong(format!("expected a value, found {}", self.shown())),
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ if is_decimal(digits) => match word.replace('_', "").parse() {
                Ok(n) => Value::Int(n),
                Err(_) => return self.wrong(format!("{word} is too large")),
            },
            _ if digits.starts_with(|c: char| c.is_ascii_digit()) && digits.contains(['.', 'e', 'E']) => {
                return self.wrong(format!("{word}: whole numbers only; the unit is in the field's name"));
            }
            _ => return self.wrong(format!("`{word}` is no value: expected a string, an integer, true or false")),
        };
        self.advance(n);
        Ok(value)
    }
}

/// Digits with single underscores between them, without a leading zero.
fn is_decimal(digits: &str) -> bool {
    let groups_ok = digits.split('_').all(|g| !g.is_empty() && g.bytes().all(|b| b.is_ascii_digit()));
    groups_ok && (digits == "0" || !digits.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(table: &Table) -> Vec<(&str, i64)> {
        let int = |(k, item): &'_ (String, Item)| match item.value {
            Value::Int(n) => Some((k.clone(), n)),
            _ => None,
        };
        let all: Vec<(String, i64)> = table.entries.iter().filter_map(int).collect();
        all.into_iter().map(|(k, n)| (&*k.leak(), n)).collect()
    }

    #[test]
    fn reads_the_subset() {
        let text = "# head\nname = \"a \\\"b\\\"\" # tail\nlist = [ 1, # one\n  2_000,\n]\n[[m]]\nx = -3\n[[m]]\nx = 4\n\
                    r = { f32 = 1, i8 = 2 }\n[m.sub]\ny = 0\nz = 'raw\\n'\nok = true\r\n";
        let root = parse(text).unwrap();
        assert_eq!(root.entries[0].1.value, Value::Str("a \"b\"".into()));
        let Value::Array(list) = &root.entries[1].1.value else { panic!() };
        assert_eq!((list[0].line, list[1].line, &list[1].value), (3, 4, &Value::Int(2000)));
        let Value::Array(m) = &root.entries[2].1.value else { panic!() };
        let Value::Table(second) = &m[1].value else { panic!() };
        assert_eq!(second.line, 8);
        assert_eq!(ints(second), [("x", 4)]);
        let Value::Table(sub) = &second.entries[2].1.value else { panic!() };
        assert_eq!(ints(sub), [("y", 0)]);
        assert_eq!(sub.entries[1].1.value, Value::Str("raw\\n".into()));
        assert_eq!(sub.entries[2].1.value, Value::Bool(true));
    }

    #[test]
    fn names_line_and_problem() {
        let cases = [
            ("a = 1\na = 2", 2, "set twice"),
            ("a = 1.5", 1, "whole numbers only"),
            ("a = 1e9", 1, "whole numbers only"),
            ("\n\na = ", 3, "expected a value"),
            ("a 1", 1, "expected `=`"),
            ("a = \"x", 1, "without an end"),
            ("a = yes", 1, "is no value"),
            ("a = 007", 1, "is no value"),
            ("a = 99999999999999999999", 1, "too large"),
            ("[a]\nx = 1\n[a]", 3, "set twice"),
            ("a = 1\n[[a]]", 2, "not an array of tables"),
            ("a = 1\n[a.b]", 2, "not a table"),
            ("a = [1 2]", 1, "expected `,` or `]`"),
            ("a = [1,", 1, "expected a value"),
            ("a = {x = 1", 1, "expected `,`"),
            ("a = 1 b = 2", 1, "unexpected `b`"),
            ("= 1", 1, "expected a name"),
            ("a = \"\"\"x\"\"\"", 1, "several lines"),
            ("a = \"\\u00e9\"", 1, "escapes"),
            ("[a.b", 1, "expected `.`"),
        ];
        for (text, line, part) in cases {
            let e = parse(text).unwrap_err();
            assert_eq!(e.line, line, "{text:?}: {}", e.message);
            assert!(e.message.contains(part), "{text:?}: {}", e.message);
        }
        let deep = format!("a = {}", "[".repeat(100_000));
        assert!(parse(&deep).unwrap_err().message.contains("deeply"));
    }

    #[test]
    fn no_text_panics() {
        let base = "name = \"x\"\n[[m]]\na = [1, {b = 'c'}]\n[m.d]\ne = 1_0 # é\n";
        let mut seed = 3u64;
        for _ in 0..20_000 {
            let mut text: Vec<char> = base.chars().collect();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (seed >> 40) as usize % text.len();
                text[at] = ['[', ']', '"', '\n', '=', '.', '{', 'é', '\\', '\0'][(seed >> 33) as usize % 10];
            }
            let _ = parse(&text.into_iter().collect::<String>());
        }
    }
}
