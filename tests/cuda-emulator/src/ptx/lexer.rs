//! Words, strings and punctuation of PTX text.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tok<'a> {
    Word(&'a str),
    Str(&'a str),
    P(u8),
}

impl<'a> Tok<'a> {
    pub fn word(&self) -> Option<&'a str> {
        match self {
            Tok::Word(w) => Some(w),
            _ => None,
        }
    }
    pub fn is(&self, c: u8) -> bool {
        matches!(self, Tok::P(p) if *p == c)
    }
}

pub struct Lexer<'a> {
    s: &'a [u8],
    t: &'a str,
    pub pos: usize,
}

fn word_char(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

impl<'a> Lexer<'a> {
    pub fn new(t: &'a str, pos: usize) -> Self {
        Lexer { s: t.as_bytes(), t, pos }
    }

    fn skip_line(&mut self) {
        while self.pos < self.s.len() && self.s[self.pos] != b'\n' {
            self.pos += 1;
        }
    }

    fn skip_space(&mut self) {
        loop {
            while self.pos < self.s.len() && self.s[self.pos].is_ascii_whitespace() {
                self.pos += 1;
            }
            let rest = &self.s[self.pos..];
            if rest.starts_with(b"//") {
                self.skip_line();
            } else if rest.starts_with(b"/*") {
                let end =
                    self.t[self.pos + 2..].find("*/").map_or(self.s.len(), |e| self.pos + e + 4);
                self.pos = end;
            } else if rest.starts_with(b".loc\t")
                || rest.starts_with(b".loc ")
                || rest.starts_with(b".file\t")
                || rest.starts_with(b".file ")
            {
                self.skip_line();
            } else {
                return;
            }
        }
    }

    pub fn next(&mut self) -> Option<Tok<'a>> {
        self.skip_space();
        let c = *self.s.get(self.pos)?;
        let start = self.pos;
        if word_char(c) {
            while self.pos < self.s.len() {
                if word_char(self.s[self.pos]) {
                    self.pos += 1;
                } else if self.s[self.pos..].starts_with(b"::") {
                    self.pos += 2;
                } else {
                    break;
                }
            }
            return Some(Tok::Word(&self.t[start..self.pos]));
        }
        if c == b'"' {
            self.pos += 1;
            while self.pos < self.s.len() && self.s[self.pos] != b'"' {
                self.pos += if self.s[self.pos] == b'\\' { 2 } else { 1 };
            }
            self.pos += 1;
            return Some(Tok::Str(&self.t[start + 1..self.pos - 1]));
        }
        self.pos += 1;
        Some(Tok::P(c))
    }

    /// With the opening brace already taken, moves behind the closing one.
    pub fn skip_braces(&mut self) {
        let mut depth = 1;
        while depth > 0 && self.pos < self.s.len() {
            match self.s[self.pos] {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b'"' => {
                    self.pos += 1;
                    while self.pos < self.s.len() && self.s[self.pos] != b'"' {
                        self.pos += if self.s[self.pos] == b'\\' { 2 } else { 1 };
                    }
                }
                b'/' if self.s[self.pos..].starts_with(b"//") => self.skip_line(),
                _ => {}
            }
            self.pos += 1;
        }
    }
}
