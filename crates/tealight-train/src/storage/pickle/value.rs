//! The values of a pickle.

/// A value. Values that contain others, and texts, are nodes of a [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// `None`
    None,
    /// `True` or `False`
    Bool(bool),
    /// An integer of at most 16 bytes.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// A function or class, by its full name.
    Global(&'static str),
    /// The index of a node.
    Node(usize),
}

/// A value that contains others, or a text.
#[derive(Debug)]
pub(super) enum Node {
    Text(String),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    /// A dictionary, in the order of insertion.
    Dict(Vec<(Value, Value)>),
    /// An object outside of the pickle, by its identity.
    Persistent(Value),
    /// The result that a function would have returned for these arguments, a tuple.
    Call {
        function: &'static str,
        arguments: Value,
    },
}

/// A pickle that was read.
#[derive(Debug)]
pub(crate) struct Pickle {
    pub(super) nodes: Vec<Node>,
    /// The value that the pickle describes.
    pub(crate) root: Value,
}

impl Pickle {
    /// The text of `value`, if it is one.
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        match self.node(value)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The elements of `value`, if it is a tuple.
    pub(crate) fn tuple(&self, value: Value) -> Option<&[Value]> {
        match self.node(value)? {
            Node::Tuple(elements) => Some(elements),
            _ => None,
        }
    }

    /// The elements of `value`, if it is a list.
    pub(crate) fn list(&self, value: Value) -> Option<&[Value]> {
        match self.node(value)? {
            Node::List(elements) => Some(elements),
            _ => None,
        }
    }

    /// The pairs of `value`, if it is a dictionary.
    pub(crate) fn dict(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.node(value)? {
            Node::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The identity of `value`, if it is outside the pickle.
    pub(crate) fn persistent(&self, value: Value) -> Option<Value> {
        match self.node(value)? {
            Node::Persistent(id) => Some(*id),
            _ => None,
        }
    }

    /// The identities of everything outside the pickle, in the order of their first use.
    pub(crate) fn all_persistent(&self) -> impl Iterator<Item = Value> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Persistent(id) => Some(*id),
            _ => None,
        })
    }

    /// Function and arguments of `value`, if it is a call.
    pub(crate) fn call(&self, value: Value) -> Option<(&'static str, &[Value])> {
        match self.node(value)? {
            Node::Call { function, arguments } => Some((function, self.tuple(*arguments)?)),
            _ => None,
        }
    }

    /// The kind of this value, with its article, for error messages.
    pub(crate) fn kind(&self, value: Value) -> &'static str {
        match (value, self.node(value)) {
            (Value::None, _) => "None",
            (Value::Bool(_), _) => "a truth value",
            (Value::Int(_) | Value::Float(_), _) => "a number",
            (Value::Global(name), _) => name,
            (Value::Node(_), Some(Node::Text(_))) => "a text",
            (Value::Node(_), Some(Node::Tuple(_))) => "a tuple",
            (Value::Node(_), Some(Node::List(_))) => "a list",
            (Value::Node(_), Some(Node::Dict(_))) => "a dictionary",
            (Value::Node(_), Some(Node::Persistent(_))) => "a storage",
            (Value::Node(_), Some(Node::Call { function, .. })) => function,
            (Value::Node(_), None) => "nothing",
        }
    }

    fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(index) => self.nodes.get(index),
            _ => None,
        }
    }
}
