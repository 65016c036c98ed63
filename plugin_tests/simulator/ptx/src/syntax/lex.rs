//! Text to tokens, each with its line.

/// A word, a string with its quotes, or one character of punctuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Where it is, from 1 on.
    pub line: u32,
    /// What it says.
    pub text: &'a str,
}

/// Splits a module's text; comments are dropped.
///
/// # Errors
/// A comment or a string that does not end.
pub fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let (mut found, mut line, mut rest) = (Vec::new(), 1, text);
    while let Some(first) = rest.chars().next() {
        let taken = if first.is_whitespace() || first == '\0' {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").ok_or_else(|| format!("ptx: line {line}: a comment begins and does not end"))? + 2
        } else {
            let length = match first {
                '"' => {
                    rest[1..].find('"').ok_or_else(|| format!("ptx: line {line}: a string begins and does not end"))?
                        + 2
                }
                _ => word(rest).max(first.len_utf8()),
            };
            found.push(Token { line, text: &rest[..length] });
            length
        };
        let (done, after) = rest.split_at(taken);
        line += done.matches('\n').count() as u32;
        rest = after;
    }
    Ok(found)
}

/// How long the word is with which a text begins. Qualifiers such as `.L1::evict_last` belong to the opcode.
fn word(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        match bytes.get(at) {
            Some(b'.' | b'_' | b'$' | b'%' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => at += 1,
            Some(b':') if at > 0 && bytes.get(at + 1) == Some(&b':') => at += 2,
            _ => return at,
        }
    }
}

/// A place in a list of tokens.
#[derive(Debug)]
pub struct Cursor<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the first one.
    pub fn new(tokens: Vec<Token<'a>>) -> Self {
        Self { tokens, at: 0 }
    }

    /// The line of the next token, or the last one.
    pub fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    /// The next token; empty at the end.
    pub fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |token| token.text)
    }

    /// The token after the next one; empty at the end.
    pub fn second(&self) -> &'a str {
        self.tokens.get(self.at + 1).map_or("", |token| token.text)
    }

    /// Takes the next token; empty at the end.
    pub fn take(&mut self) -> &'a str {
        let text = self.peek();
        self.at += 1;
        text
    }

    /// Takes the next token if it is this one.
    pub fn eat(&mut self, text: &str) -> bool {
        let is = self.peek() == text;
        self.at += usize::from(is);
        is
    }

    /// Takes this token.
    ///
    /// # Errors
    /// Another one comes.
    pub fn expect(&mut self, text: &str) -> Result<(), String> {
        if self.eat(text) {
            Ok(())
        } else {
            Err(self.error(&format!("\"{text}\" is needed before \"{}\"", self.peek())))
        }
    }

    /// Whether all is taken.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Takes the rest of a line: directives that no semicolon ends.
    pub fn skip_line(&mut self) {
        let line = self.line();
        while !self.is_at_end() && self.line() == line {
            self.at += 1;
        }
    }

    /// Takes all up to a token, and that one; pairs of braces and parentheses are taken whole.
    ///
    /// # Errors
    /// It does not come.
    pub fn until(&mut self, end: &str) -> Result<Vec<Token<'a>>, String> {
        let (start, mut depth) = (self.at, 0usize);
        while let Some(&Token { text, .. }) = self.tokens.get(self.at) {
            self.at += 1;
            if depth == 0 && text == end {
                return Ok(self.tokens[start..self.at - 1].to_vec());
            }
            match text {
                "{" | "(" => depth += 1,
                "}" | ")" => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        self.at = start;
        Err(self.error(&format!("\"{end}\" is missing after \"{}\"", self.peek())))
    }

    /// A sentence about the next token's line.
    pub fn error(&self, what: &str) -> String {
        format!("ptx: line {}: {what}", self.line())
    }
}
