//! Nested operations on digits, token by token, with their values.
//!
//! ```text
//! [MAX 2 9 [MIN 4 7 ] 0 ]  =  9
//! ```
//!
//! The operators are those of ListOps (Nangia & Bowman 2018, <https://arxiv.org/abs/1804.06028>) that the
//! Long Range Arena uses (Tay et al. 2021, <https://arxiv.org/abs/2011.04006>): minimum, maximum, median, and
//! sum modulo 10. The median of an even number of digits is the mean of the two in the middle, rounded down.

use serde::Serialize;

/// Token ids: 0 is padding, 1 to 10 are the digits, 11 to 14 the operators with their brackets, 15 is the
/// closing bracket.
pub const VOCAB_SIZE: usize = 16;
/// Padding.
pub const PAD: u8 = 0;
/// Possible values of an expression.
pub const N_CLASSES: usize = 10;

const FIRST_OPERATOR: u8 = 11;
const CLOSE: u8 = 15;

/// An operation on digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// `[MIN`
    Min,
    /// `[MAX`
    Max,
    /// `[MED`
    Median,
    /// `[SM`
    SumModulo10,
}

impl Operator {
    /// Every operator, in the order of the tokens.
    pub const ALL: [Self; 4] = [Self::Min, Self::Max, Self::Median, Self::SumModulo10];

    /// The value of an operation on one digit or more.
    fn value(self, arguments: &mut [u8]) -> u8 {
        arguments.sort_unstable();
        let n = arguments.len();
        match self {
            Self::Min => arguments[0],
            Self::Max => arguments[n - 1],
            Self::Median => u8::midpoint(arguments[(n - 1) / 2], arguments[n / 2]),
            Self::SumModulo10 => {
                (arguments.iter().map(|&digit| u32::from(digit)).sum::<u32>() % 10) as u8
            }
        }
    }
}

/// An operation, its tokens and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// Ids below [`VOCAB_SIZE`], never [`PAD`].
    pub tokens: Vec<u8>,
    /// Its value, 0 to 9.
    pub value: u8,
    /// Depth of the nested operations, the outermost included.
    pub depth: usize,
    /// The outermost operation.
    pub root: Operator,
}

/// Writes the tokens of an expression and computes its value.
#[derive(Debug, Default)]
pub(super) struct Writer {
    tokens: Vec<u8>,
    depth: usize,
    open: Vec<(Operator, Vec<u8>)>,
    done: Option<(Operator, u8)>,
}

impl Writer {
    pub(super) fn open(&mut self, operator: Operator) {
        self.tokens.push(FIRST_OPERATOR + operator as u8);
        self.open.push((operator, Vec::new()));
        self.depth = self.depth.max(self.open.len());
    }

    pub(super) fn digit(&mut self, digit: u8) {
        self.tokens.push(1 + digit);
        self.argument(digit);
    }

    pub(super) fn close(&mut self) {
        let (operator, mut arguments) = self.open.pop().expect("invariant: what closes was open");
        self.tokens.push(CLOSE);
        let value = operator.value(&mut arguments);
        self.argument(value);
        if self.open.is_empty() {
            self.done = Some((operator, value));
        }
    }

    /// Tokens so far.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Number of open operations.
    pub(super) fn n_open(&self) -> usize {
        self.open.len()
    }

    /// The expression, once its outermost operation is closed.
    pub(super) fn finish(self) -> Option<Expression> {
        let Self { tokens, depth, done, .. } = self;
        done.map(|(root, value)| Expression { tokens, value, depth, root })
    }

    fn argument(&mut self, value: u8) {
        if let Some((_, arguments)) = self.open.last_mut() {
            arguments.push(value);
        }
    }
}

impl Expression {
    /// The expression as text, tokens with spaces between them.
    pub fn text(&self) -> String {
        let names: Vec<String> = self.tokens.iter().map(|&token| name(token)).collect();
        names.join(" ")
    }

    /// The expression that is written as [`Self::text`] writes it. Round brackets are left out: files of the Long Range
    /// Arena have them around each argument.
    ///
    /// # Errors
    /// If it is not one operation, which may contain others.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut writer = Writer::default();
        for word in text.split_whitespace().filter(|word| !matches!(*word, "(" | ")")) {
            let operator = OPERATORS.iter().position(|name| *name == word);
            let digit = word.parse().ok().filter(|&digit: &u8| usize::from(digit) < N_CLASSES);
            let is_inside = !writer.open.is_empty();
            match (operator, digit, word) {
                _ if writer.done.is_some() => {
                    return Err(format!("\"{word}\" follows the end of the expression"));
                }
                (Some(at), ..) => writer.open(Operator::ALL[at]),
                (_, Some(digit), _) if is_inside => writer.digit(digit),
                (_, _, "]") if writer.open.last().is_some_and(|(_, digits)| !digits.is_empty()) => {
                    writer.close();
                }
                (_, Some(_), _) => return Err(format!("the digit {word} is in no operation")),
                (_, _, "]") => return Err("a bracket closes no operation on digits".to_owned()),
                _ => {
                    let known = OPERATORS.join(", ");
                    return Err(format!("\"{word}\" is no digit, no ], and none of {known}"));
                }
            }
        }
        writer.finish().ok_or_else(|| "the expression does not end".to_owned())
    }
}

/// What an operator begins with, in the order of the tokens.
const OPERATORS: [&str; Operator::ALL.len()] = ["[MIN", "[MAX", "[MED", "[SM"];

/// The text of a token.
fn name(token: u8) -> String {
    match token {
        PAD => "[PAD]".to_owned(),
        CLOSE => "]".to_owned(),
        digit if digit < FIRST_OPERATOR => (digit - 1).to_string(),
        operator => OPERATORS[usize::from(operator - FIRST_OPERATOR)].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(operator: Operator, arguments: &[u8]) -> u8 {
        operator.value(&mut arguments.to_vec())
    }

    #[test]
    fn operators_do_what_their_names_say() {
        assert_eq!(value(Operator::Min, &[5, 2, 9]), 2);
        assert_eq!(value(Operator::Max, &[5, 2, 9]), 9);
        assert_eq!(value(Operator::Median, &[9, 2, 5]), 5);
        // (2 + 5) / 2, rounded down.
        assert_eq!(value(Operator::Median, &[9, 5, 2, 1]), 3);
        assert_eq!(value(Operator::SumModulo10, &[9; 10]), 0);
        assert_eq!(value(Operator::SumModulo10, &[9, 5, 2]), 6);
    }

    #[test]
    fn an_expression_is_written_and_evaluated() {
        let mut writer = Writer::default();
        writer.open(Operator::Max);
        writer.digit(2);
        writer.open(Operator::SumModulo10);
        writer.digit(4);
        writer.digit(7);
        assert_eq!((writer.len(), writer.n_open()), (5, 2));
        writer.close();
        writer.digit(0);
        writer.close();
        let expression = writer.finish().unwrap();
        assert_eq!(expression.text(), "[MAX 2 [SM 4 7 ] 0 ]");
        assert_eq!(expression.tokens, [12, 3, 14, 5, 8, 15, 1, 15]);
        assert_eq!((expression.value, expression.depth, expression.root), (2, 2, Operator::Max));
    }

    #[test]
    fn every_token_has_a_name() {
        let mut names: Vec<String> = (0..VOCAB_SIZE as u8).map(name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), VOCAB_SIZE);
    }
}
