//! The machine: opcodes to values.

use std::collections::BTreeMap;
use std::io::{self, Read};

use super::error::PickleError;
use super::value::{Node, Pickle, Value};

/// The largest number of nodes, of entries of the memo, and of values on the stack. `torch.save` writes about
/// ten nodes per tensor.
const MAX_VALUES: usize = 1 << 19;
/// The largest number of elements of all tuples, lists and dictionaries together. A remembered value takes two bytes
/// to add once more, so the size of the pickle limits them too little.
const MAX_ELEMENTS: usize = 1 << 21;
/// The largest number of bytes of a pickle.
pub(crate) const MAX_BYTES: u64 = 1 << 26;
/// The longest text: the name of a tensor.
const MAX_TEXT: usize = 1 << 14;
/// The longest full name of a global.
const MAX_GLOBAL: usize = 256;

/// The one class of Python's library that `torch.save` uses: an empty dictionary.
const ORDERED_DICT: &str = "collections.OrderedDict";

type Result<T, E = PickleError> = std::result::Result<T, E>;

/// Reads one pickle of at most `max_bytes`, up to its end mark and not beyond. `globals` are the full names that it may
/// ask for, besides `collections.OrderedDict`, which becomes an empty dictionary.
pub(crate) fn read(
    reader: &mut impl Read,
    globals: &[&'static str],
    max_bytes: u64,
) -> Result<Pickle> {
    let mut machine = Machine {
        reader,
        at: 0,
        max_bytes,
        globals,
        n_elements: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
    };
    loop {
        let opcode = machine.byte()?;
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle { nodes: machine.nodes, root });
        }
        machine.step(opcode)?;
    }
}

struct Machine<'a, R> {
    reader: &'a mut R,
    /// Bytes that were read.
    at: u64,
    /// The most bytes that are read.
    max_bytes: u64,
    globals: &'a [&'static str],
    /// Elements of all tuples, lists and dictionaries.
    n_elements: usize,
    nodes: Vec<Node>,
    stack: Vec<Value>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
}

impl<R: Read> Machine<'_, R> {
    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            0x80 => self.protocol(),
            b'(' => self.mark(),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'K' | b'M' | b'J' | 0x8a | b'G' => self.number(opcode),
            b'X' => self.text(),
            b'c' => self.global(),
            b')' | 0x85..=0x87 | b't' => self.tuple(opcode),
            b']' => self.push_node(Node::List(Vec::new())),
            b'}' => self.push_node(Node::Dict(Vec::new())),
            b'a' | b'e' => self.append(opcode),
            b's' | b'u' => self.insert(opcode),
            b'q' | b'r' => self.remember(opcode),
            b'h' | b'j' => self.recall(opcode),
            b'Q' => {
                let id = self.pop()?;
                self.push_node(Node::Persistent(id))
            }
            b'R' => self.call(),
            b'b' => self.set_attributes(),
            _ => Err(self.rule(format!("0x{opcode:02x} is no opcode that torch writes"))),
        }
    }

    fn protocol(&mut self) -> Result<()> {
        match self.byte()? {
            2 => Ok(()),
            n => Err(self.rule(format!("the protocol is {n}, and torch writes 2"))),
        }
    }

    fn number(&mut self, opcode: u8) -> Result<()> {
        let value = match opcode {
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.bytes()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.bytes()?).into()),
            b'G' => Value::Float(f64::from_be_bytes(self.bytes()?)),
            _ => Value::Int(self.long()?),
        };
        self.push(value)
    }

    /// An integer of any length, in two's complement, lowest byte first.
    fn long(&mut self) -> Result<i128> {
        let len = usize::from(self.byte()?);
        let mut bytes = [0; 16];
        let Some(given) = bytes.get_mut(..len) else {
            return Err(self.rule(format!("an integer has {len} bytes, and at most 16 are read")));
        };
        self.fill(given)?;
        let is_negative = given.last().is_some_and(|highest| highest & 0x80 != 0);
        if is_negative {
            bytes[len..].fill(0xff);
        }
        Ok(i128::from_le_bytes(bytes))
    }

    fn text(&mut self) -> Result<()> {
        let len = u32::from_le_bytes(self.bytes()?) as usize;
        if len > MAX_TEXT {
            return Err(
                self.rule(format!("a text has {len} bytes, and at most {MAX_TEXT} are read"))
            );
        }
        let mut bytes = vec![0; len];
        self.fill(&mut bytes)?;
        match String::from_utf8(bytes) {
            Ok(text) => self.push_node(Node::Text(text)),
            Err(_) => Err(self.rule("a text is not UTF-8")),
        }
    }

    /// Two lines: the module, and the name in it.
    fn global(&mut self) -> Result<()> {
        let mut name = Vec::new();
        for end in [b'.', b'\n'] {
            loop {
                match self.byte()? {
                    b'\n' => break,
                    byte if name.len() < MAX_GLOBAL => name.push(byte),
                    _ => {
                        return Err(self.rule(format!("a global has more than {MAX_GLOBAL} bytes")));
                    }
                }
            }
            name.push(end);
        }
        let name = String::from_utf8_lossy(&name);
        let name = name.trim_end_matches('\n');
        let mut known = self.globals.iter().copied().chain([ORDERED_DICT]);
        match known.find(|known| *known == name) {
            Some(name) => self.push(Value::Global(name)),
            None => Err(PickleError::Global { name: name.escape_debug().to_string() }),
        }
    }

    fn tuple(&mut self, opcode: u8) -> Result<()> {
        let elements = match opcode {
            b')' => Vec::new(),
            b't' => self.pop_to_mark()?,
            _ => self.pop_many(usize::from(opcode - 0x84))?,
        };
        self.hold(elements.len())?;
        self.push_node(Node::Tuple(elements))
    }

    fn append(&mut self, opcode: u8) -> Result<()> {
        let new = if opcode == b'a' { self.pop_many(1)? } else { self.pop_to_mark()? };
        self.hold(new.len())?;
        match self.top_node()? {
            Some(Node::List(elements)) => elements.extend(new),
            _ => return Err(self.rule("what is appended to is not a list")),
        }
        Ok(())
    }

    fn insert(&mut self, opcode: u8) -> Result<()> {
        let new = if opcode == b's' { self.pop_many(2)? } else { self.pop_to_mark()? };
        self.hold(new.len())?;
        let (pairs, rest) = new.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.rule("a dictionary gets a key without a value"));
        }
        match self.top_node()? {
            Some(Node::Dict(dict)) => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            _ => return Err(self.rule("what gets a key is not a dictionary")),
        }
        Ok(())
    }

    /// Counts `n` elements that a tuple, a list or a dictionary is about to hold.
    fn hold(&mut self, n: usize) -> Result<()> {
        self.n_elements += n;
        if self.n_elements > MAX_ELEMENTS {
            return Err(self.rule(format!(
                "the tuples, lists and dictionaries have more than {MAX_ELEMENTS} elements"
            )));
        }
        Ok(())
    }

    fn remember(&mut self, opcode: u8) -> Result<()> {
        let place = self.place(opcode == b'q')?;
        let Some(&value) = self.stack.last() else { return Err(self.rule("the stack is empty")) };
        self.memo.insert(place, value);
        if self.memo.len() > MAX_VALUES {
            return Err(self.rule(format!("the memo has more than {MAX_VALUES} entries")));
        }
        Ok(())
    }

    fn recall(&mut self, opcode: u8) -> Result<()> {
        let place = self.place(opcode == b'h')?;
        match self.memo.get(&place) {
            Some(&value) => self.push(value),
            None => Err(self.rule(format!("the memo has no entry {place}"))),
        }
    }

    /// A place in the memo, of one byte if it `is_short`, else of four.
    fn place(&mut self, is_short: bool) -> Result<u32> {
        if is_short { Ok(self.byte()?.into()) } else { Ok(u32::from_le_bytes(self.bytes()?)) }
    }

    fn call(&mut self) -> Result<()> {
        let arguments = self.pop()?;
        let function = self.pop()?;
        match (function, arguments) {
            (Value::Global(ORDERED_DICT), Value::Node(index)) => match self.nodes.get(index) {
                Some(Node::Tuple(none)) if none.is_empty() => {
                    self.push_node(Node::Dict(Vec::new()))
                }
                _ => Err(self.rule(format!("`{ORDERED_DICT}` has arguments"))),
            },
            (Value::Global(function), arguments) => {
                self.push_node(Node::Call { function, arguments })
            }
            _ => Err(self.rule("what is called is not a global")),
        }
    }

    /// Attributes of a dictionary, such as the `_metadata` of a state, are not part of its content.
    fn set_attributes(&mut self) -> Result<()> {
        self.pop()?;
        match self.top_node()? {
            Some(Node::Dict(_)) => Ok(()),
            _ => Err(self.rule("what gets attributes is not a dictionary")),
        }
    }

    fn mark(&mut self) -> Result<()> {
        self.marks.push(self.stack.len());
        if self.marks.len() > MAX_VALUES {
            return Err(self.rule(format!("the stack has more than {MAX_VALUES} marks")));
        }
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<()> {
        let index = self.nodes.len();
        if index == MAX_VALUES {
            return Err(self.rule(format!("there are more than {MAX_VALUES} values")));
        }
        self.nodes.push(node);
        self.push(Value::Node(index))
    }

    fn push(&mut self, value: Value) -> Result<()> {
        if self.stack.len() == MAX_VALUES {
            return Err(self.rule(format!("the stack has more than {MAX_VALUES} values")));
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > floor { self.stack.pop() } else { None };
        value.ok_or_else(|| self.rule("the stack is empty"))
    }

    /// The last `n` values, in the order in which they were pushed.
    fn pop_many(&mut self, n: usize) -> Result<Vec<Value>> {
        let mut values: Vec<Value> = (0..n).map(|_| self.pop()).collect::<Result<_>>()?;
        values.reverse();
        Ok(values)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => Err(self.rule("the stack has no mark")),
        }
    }

    /// The node that the top of the stack refers to; `None` if the top is another kind of value.
    fn top_node(&mut self) -> Result<Option<&mut Node>> {
        match self.stack.last() {
            Some(&Value::Node(index)) => Ok(self.nodes.get_mut(index)),
            Some(_) => Ok(None),
            None => Err(self.rule("the stack is empty")),
        }
    }

    fn byte(&mut self) -> Result<u8> {
        let [byte] = self.bytes()?;
        Ok(byte)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn rule(&self, rule: impl Into<String>) -> PickleError {
        PickleError::Rule { at: self.at, rule: rule.into() }
    }

    /// Reads all of `bytes`.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let end = self.at + bytes.len() as u64;
        if end > self.max_bytes {
            return Err(self.rule(format!("it has more than {} bytes", self.max_bytes)));
        }
        match self.reader.read_exact(bytes) {
            Ok(()) => {
                self.at = end;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(PickleError::CutOff { at: self.at })
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["torch.f"];

    fn load(bytes: &[u8]) -> Result<Pickle> {
        read(&mut &*bytes, KNOWN, MAX_BYTES)
    }

    fn message(bytes: &[u8]) -> String {
        load(bytes).unwrap_err().to_string()
    }

    fn text(text: &str) -> Vec<u8> {
        [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
    }

    /// The numbers of the tuple that these opcodes leave on the stack.
    fn numbers(opcodes: &[u8]) -> Vec<Value> {
        let pickle = load(&[b"\x80\x02(", opcodes, b"t."].concat()).unwrap();
        pickle.tuple(pickle.root).unwrap().to_vec()
    }

    #[test]
    fn numbers_are_those_of_python() {
        // pickletools.genops(pickle.dumps((0, 255, 1001, -2, 2**40, -2**40, -(2**127)), 2))
        let ints = b"K\x00K\xffM\xe9\x03J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x06\x00\x00\x00\x00\x00\xff\
                     \x8a\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x8a\x00";
        let expected = [0, 255, 1001, -2, 1 << 40, -(1 << 40), i128::MIN, 0].map(Value::Int);
        assert_eq!(numbers(ints), expected);
        let others = b"N\x88\x89G\x3f\xe0\x00\x00\x00\x00\x00\x00";
        let expected = [Value::None, Value::Bool(true), Value::Bool(false), Value::Float(0.5)];
        assert_eq!(numbers(others), expected);
    }

    #[test]
    fn lists_and_dictionaries_grow_also_after_they_were_remembered() {
        // {"a": [1, 2, 3]}, where the list is remembered while it is empty.
        let bytes = [b"\x80\x02}", &*text("a"), b"]q\x05K\x01a(K\x02K\x03es."].concat();
        let pickle = load(&bytes).unwrap();
        let [(key, list)] = pickle.dict(pickle.root).unwrap() else { panic!("one pair") };
        assert_eq!(pickle.text(*key), Some("a"));
        assert_eq!(pickle.list(*list).unwrap(), [1, 2, 3].map(Value::Int));
        let again = load(b"\x80\x02]r\x00\x00\x01\x00(j\x00\x00\x01\x00e.").unwrap();
        assert_eq!(again.list(again.root), Some(&[again.root][..]), "it contains itself");
    }

    #[test]
    fn a_call_is_its_name_and_its_arguments() {
        let pickle = load(b"\x80\x02ctorch\nf\nK\x07\x85R.").unwrap();
        assert_eq!(pickle.call(pickle.root), Some(("torch.f", &[Value::Int(7)][..])));
        let pickle = load(b"\x80\x02K\x07Q.").unwrap();
        assert_eq!(pickle.persistent(pickle.root), Some(Value::Int(7)));
        let ordered = b"\x80\x02ccollections\nOrderedDict\n)R}b.";
        let pickle = load(ordered).unwrap();
        assert_eq!(pickle.dict(pickle.root), Some(&[][..]));
    }

    #[test]
    fn any_other_global_is_refused_by_its_full_name_before_anything_uses_it() {
        for (bytes, name) in [
            (&b"\x80\x02cposix\nsystem\n"[..], "`posix.system`"),
            (b"cbuiltins\neval\nX", "`builtins.eval`"),
            (b"ctorch\nf.g\n", "`torch.f.g`"),
            (b"ctorch.f\n\n", "`torch.f.`"),
            (b"c\ntorch.f\n", "`.torch.f`"),
            (b"ctorch\n f\n", "`torch. f`"),
            (b"ca\x1b\nb\xff\n", "`a\\u{1b}.b\u{fffd}`"),
        ] {
            let error = message(bytes);
            assert!(
                error.contains(name) && error.contains("nothing of this one was run"),
                "{error}"
            );
        }
    }

    #[test]
    fn every_broken_rule_is_an_error_with_its_place() {
        for (bytes, expected) in [
            (&b"\x80\x04"[..], "byte 2 of the pickle: the protocol is 4"),
            (b"\x80\x02i", "byte 3 of the pickle: 0x69 is no opcode"),
            (b".", "the stack is empty"),
            (b"N(.", "the stack is empty"),
            (b"N\x86", "the stack is empty"),
            (b"t", "no mark"),
            (b"e", "no mark"),
            (b"Na", "the stack is empty"),
            (b"NNa", "not a list"),
            (b"(NNN}u", "the stack is empty"),
            (b"}(NNNu", "a key without a value"),
            (b"](NNu", "not a dictionary"),
            (b"q\x00", "the stack is empty"),
            (b"h\x09", "no entry 9"),
            (b"NNR", "not a global"),
            (b"ccollections\nOrderedDict\n]\x85R", "has arguments"),
            (b"NNb", "not a dictionary"),
            (b"\x8a\x11", "an integer has 17 bytes"),
            (b"X\xff\xff\xff\xff", "a text has 4294967295 bytes"),
            (b"X\x01\x00\x00\x00\xff", "not UTF-8"),
            (b"X\x05\x00\x00\x00abc", "the pickle is cut off at byte 5"),
            (b"", "cut off at byte 0"),
            (b"M\x01", "cut off at byte 1"),
            (b"c", "cut off at byte 1"),
        ] {
            let error = message(bytes);
            assert!(error.contains(expected), "{bytes:?}: {error}");
        }
        assert!(message(&[b'c'; 300]).contains("more than 256 bytes"));
    }

    #[test]
    fn no_pickle_grows_without_bound() {
        let many = |opcode: &[u8]| message(&opcode.repeat(MAX_VALUES + 1));
        assert!(many(b"N").contains("the stack has more than"));
        assert!(many(b"(").contains("marks"));
        assert!(many(b"]").contains(&format!("more than {MAX_VALUES} values")));
        assert!(many(b")0").contains("no opcode"));
        let places = (0..=MAX_VALUES as u32).flat_map(|place| {
            let [a, b, c, d] = place.to_le_bytes();
            [b'r', a, b, c, d]
        });
        let memo: Vec<u8> = std::iter::once(b'N').chain(places).collect();
        assert!(message(&memo).contains("the memo has more than"));
        let endless = &mut std::io::repeat(b'N').chain(io::empty());
        assert!(read(&mut endless.take(MAX_BYTES * 2), KNOWN, MAX_BYTES).is_err());
    }
}
