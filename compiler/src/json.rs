//! Reads JSON: as much as files of measured times need, without a dependency in every build that includes a model.
//!
//! In: text. Out: a [`Json`], or the line and what is wrong in it. Nesting is bounded; numbers that are no whole ones
//! are kept as such.

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// `null`, `true` and `false`.
    Word,
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// A member of an object.
    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        let Json::Object(members) = self else { return None };
        members.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// A whole number that a `u64` holds exactly enough: measured nanoseconds.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        let Json::Number(n) = self else { return None };
        (n.fract() == 0.0 && (0.0..=9.0e15).contains(n)).then_some(*n as u64)
    }
}

/// Values in values, at most.
const MAX_DEPTH: usize = 64;

/// Reads one value and nothing after it.
pub(crate) fn parse(text: &str) -> Result<Json, String> {
    let mut at = Reader { text, pos: 0 };
    let value = at.value(0);
    let value = value.and_then(|v| {
        at.space();
        if at.pos == text.len() { Ok(v) } else { Err("something follows the value".into()) }
    });
    value.map_err(|what: String| format!("line {}: {what}", 1 + text[..at.pos].matches('\n').count()))
}

struct Reader<'t> {
    text: &'t str,
    /// A boundary between two characters.
    pos: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        let rest = &self.text[self.pos..];
        self.pos += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    /// Whether this stands here; then it is read.
    fn eat(&mut self, what: &str) -> bool {
        let here = self.text[self.pos..].starts_with(what);
        self.pos += if here { what.len() } else { 0 };
        here
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        self.space();
        if depth > MAX_DEPTH {
            return Err("values are nested too deeply".into());
        }
        if ["null", "true", "false"].iter().any(|word| self.eat(word)) {
            return Ok(Json::Word);
        }
        match self.text[self.pos..].chars().next() {
            Some('"') => self.string().map(Json::Text),
            Some('[') => self.all("[", "]", |r| r.value(depth + 1)).map(Json::List),
            Some('{') => {
                let members = self.all("{", "}", |r| {
                    r.space();
                    let key = r.string()?;
                    r.space();
                    if r.eat(":") { Ok((key, r.value(depth + 1)?)) } else { Err("expected `:` after a key".into()) }
                });
                members.map(Json::Object)
            }
            Some('-' | '0'..='9') => self.number(),
            Some(c) => Err(format!("expected a value, found {c:?}")),
            None => Err("the text ends where a value should stand".into()),
        }
    }

    /// Items between `open` and `close`, with commas between them.
    fn all<T>(
        &mut self,
        open: &str,
        close: &str,
        item: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        self.eat(open);
        let mut out = Vec::new();
        self.space();
        if self.eat(close) {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            self.space();
            if self.eat(close) {
                return Ok(out);
            }
            if !self.eat(",") {
                return Err(format!("expected `,` or `{close}`"));
            }
        }
    }

    fn number(&mut self) -> Result<Json, String> {
        let rest = &self.text[self.pos..];
        let len = rest.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let n = rest[..len].parse().map_err(|_| format!("{} is no number", &rest[..len]))?;
        self.pos += len;
        Ok(Json::Number(n))
    }

    fn string(&mut self) -> Result<String, String> {
        if !self.eat("\"") {
            return Err("expected a text in quotes".into());
        }
        let mut out = String::new();
        loop {
            let Some(c) = self.text[self.pos..].chars().next() else { return Err("a text does not end".into()) };
            self.pos += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escaped()?),
                '\u{0}'..='\u{1f}' => return Err("a control character in a text".into()),
                c => out.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let c = self.text[self.pos..].chars().next().ok_or("a text does not end")?;
        self.pos += c.len_utf8();
        Ok(match c {
            '"' | '\\' | '/' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit()?;
                let pair = (0xd800..0xdc00).contains(&first) && self.eat("\\u");
                let second = if pair { self.unit()? } else { 0 };
                let code = if pair {
                    0x10000 + ((first - 0xd800) << 10) + (second.wrapping_sub(0xdc00) & 0x3ff)
                } else {
                    first
                };
                char::from_u32(code).ok_or("an escape that is no character")?
            }
            c => return Err(format!("an unknown escape: {c:?}")),
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Result<u32, String> {
        let digits = self.text.get(self.pos..self.pos + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = digits.ok_or("expected four hexadecimal digits")?;
        self.pos += 4;
        u32::from_str_radix(digits, 16).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let json = parse(" {\"a\" : [1, -2.5e1, true, null], \"b\\u00e4\\n\\ud83d\\ude00\": {}} ").unwrap();
        assert_eq!(
            json.get("a"),
            Some(&Json::List(vec![Json::Number(1.0), Json::Number(-25.0), Json::Word, Json::Word]))
        );
        assert_eq!(json.get("bä\n😀"), Some(&Json::Object(vec![])));
        let number = |n| Json::Number(n).as_u64();
        assert_eq!((number(7.0), number(7.5), number(-1.0), number(1e300)), (Some(7), None, None, None));
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "[1,]",
            "[1 2]",
            "{1:2}",
            "{\"a\"}",
            "\"a",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\\u12",
            "-",
            "1 1",
            "nul",
            "ä",
            &deep,
        ] {
            assert!(parse(text).is_err(), "{text:.20}");
        }
        assert_eq!(parse("[1,\n\n x]"), Err("line 3: expected a value, found 'x'".into()));
    }
}
