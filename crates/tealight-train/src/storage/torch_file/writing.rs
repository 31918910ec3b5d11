//! Files of `torch.save`, written for tests.

use std::io::{Cursor, Write as _};

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// The state of a file, opcode by opcode.
pub(super) struct State(pub(super) Vec<u8>);

/// A tensor of a state.
pub(super) struct View<'a> {
    pub(super) class: &'a str,
    pub(super) key: &'a str,
    pub(super) len: i32,
    pub(super) offset: i32,
    pub(super) shape: &'a [i32],
    pub(super) strides: &'a [i32],
}

/// All of a storage of f32, as a vector.
pub(super) fn vector(key: &str, len: i32) -> View<'_> {
    View { class: "FloatStorage", key, len, offset: 0, shape: &[-1], strides: &[1] }
}

impl State {
    /// An empty dictionary.
    pub(super) fn new() -> Self {
        Self(b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec())
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.0.push(b'X');
        self.0.extend((text.len() as u32).to_le_bytes());
        self.opcodes(text)
    }

    pub(super) fn opcodes(mut self, opcodes: impl AsRef<[u8]>) -> Self {
        self.0.extend(opcodes.as_ref());
        self
    }

    fn int(mut self, int: i32) -> Self {
        self.0.push(b'J');
        self.opcodes(int.to_le_bytes())
    }

    fn ints(self, ints: impl IntoIterator<Item = i32>) -> Self {
        ints.into_iter().fold(self.opcodes("("), Self::int).opcodes("t")
    }

    /// Adds a tensor, as the legacy format does if it `is_legacy`.
    fn tensor(self, view: &View<'_>, is_legacy: bool) -> Self {
        let View { class, key, len, offset, shape, strides } = *view;
        let storage = self.opcodes("ctorch._utils\n_rebuild_tensor_v2\n((").text("storage");
        let storage = storage.opcodes(format!("ctorch\n{class}\n")).text(key).text("cpu").int(len);
        let storage = storage.opcodes(if is_legacy { "NtQ" } else { "tQ" });
        let shape = shape.iter().map(|axis| if *axis == -1 { len } else { *axis });
        let view = storage.int(offset).ints(shape).ints(strides.iter().copied());
        view.opcodes(b"\x89ccollections\nOrderedDict\n)RtR")
    }

    /// Adds a tensor with a name.
    pub(super) fn named(self, name: &str, view: &View<'_>) -> Self {
        self.text(name).tensor(view, false)
    }

    pub(super) fn named_in_legacy(self, name: &str, view: &View<'_>) -> Self {
        self.text(name).tensor(view, true)
    }

    /// Adds a parameter with a name.
    pub(super) fn parameter(self, name: &str, view: &View<'_>) -> Self {
        let parameter = self.text(name).opcodes("ctorch._utils\n_rebuild_parameter\n(");
        parameter.tensor(view, false).opcodes(b"\x88ccollections\nOrderedDict\n)RtR")
    }

    /// The end of the dictionary, with attributes as PyTorch gives them.
    pub(super) fn end(self) -> Vec<u8> {
        self.opcodes("u}").text("_metadata").opcodes("}sb.").0
    }
}

/// A zip archive of records.
pub(super) fn zip(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in records {
        archive.start_file(*name, options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// A file of the legacy format.
pub(super) fn legacy(state: &[u8], storages: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let system = State(b"\x80\x02}".to_vec()).text("little_endian").opcodes(b"\x88s.").0;
    legacy_on(&system, state, storages)
}

/// A file of the legacy format, written on this `system`.
pub(super) fn legacy_on(system: &[u8], state: &[u8], storages: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
    let keys = State(b"\x80\x02](".to_vec());
    let keys = storages.iter().fold(keys, |keys, (key, ..)| keys.text(key)).opcodes("e.").0;
    let storages = storages.iter().map(|(_, n, bytes)| [&n.to_le_bytes()[..], bytes].concat());
    [magic, system, state, &keys, &storages.collect::<Vec<_>>().concat()].concat()
}
