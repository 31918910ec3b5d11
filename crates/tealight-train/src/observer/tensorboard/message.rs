//! The messages of TensorFlow's `event.proto` and `summary.proto` that an event file needs, encoded as Protocol Buffers
//! (<https://protobuf.dev/programming-guides/encoding/>). The constants are the numbers of the fields.
//!
//! ```text
//! Event    1 wall_time double   2 step int64   3 file_version string   5 Summary   7 SessionLog
//! Summary  1 Value, repeated    Value  1 tag string   2 simple_value float   4 Image
//! Image    1 height   2 width   3 colorspace   4 encoded_image_string
//! SessionLog  1 status
//! ```

use super::Image;

/// `Event.file_version`
pub(super) const VERSION: &[u8] = b"\x1a\x0dbrain.Event:2";

/// The value of `Image.colorspace` for RGBA.
const RGBA: u64 = 4;
/// `SessionLog.SessionStatus`: TensorBoard drops earlier events of this step or later ones.
const START: u64 = 1;

/// `Event` with the encoded `fields` after time and step.
pub(super) fn event(wall_time: f64, step: u64, fields: &[u8]) -> Vec<u8> {
    let mut event = key(1, Wire::Fixed64);
    event.extend(wall_time.to_le_bytes());
    event.extend(number(2, step));
    event.extend_from_slice(fields);
    event
}

/// `Event.session_log` with the status START.
pub(super) fn session_start() -> Vec<u8> {
    bytes(7, &number(1, START))
}

/// `Event.summary` with encoded `values`.
pub(super) fn summary(values: &[Vec<u8>]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| bytes(1, value)).collect();
    bytes(5, &values)
}

/// `Summary.Value` with a scalar.
pub(super) fn scalar(tag: &str, value: f64) -> Vec<u8> {
    let mut scalar = bytes(1, tag.as_bytes());
    scalar.extend(key(2, Wire::Fixed32));
    scalar.extend((value as f32).to_le_bytes());
    scalar
}

/// `Summary.Value` with an image.
pub(super) fn image(image: &Image) -> Vec<u8> {
    let Image { tag, width, height, png } = image;
    let mut fields = number(1, u64::from(*height));
    fields.extend(number(2, u64::from(*width)));
    fields.extend(number(3, RGBA));
    fields.extend(bytes(4, png));
    let mut value = bytes(1, tag.as_bytes());
    value.extend(bytes(4, &fields));
    value
}

/// The wire type of a field: how its value is encoded.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

fn key(field: u64, wire: Wire) -> Vec<u8> {
    varint(field << 3 | wire as u64)
}

fn number(field: u64, value: u64) -> Vec<u8> {
    let mut number = key(field, Wire::Varint);
    number.extend(varint(value));
    number
}

/// A field with a string, bytes or a nested message.
fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = key(field, Wire::Bytes);
    bytes.extend(varint(content.len() as u64));
    bytes.extend_from_slice(content);
    bytes
}

/// Seven bits per byte, the lowest first. The eighth bit is set if more bytes follow.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
