//! The forms that sizes and numbers of channels have.

use serde_json::Value;

/// A number of pixels.
pub(super) fn side(value: &Value) -> Option<usize> {
    const MAX: u64 = 1 << 12;
    value.as_u64().filter(|n| (1..=MAX).contains(n)).map(|n| n as usize)
}

pub(super) fn only_key(value: &Value, key: &str) -> Option<usize> {
    let keys =
        value.as_object().filter(|keys| keys.values().filter(|it| !it.is_null()).count() == 1)?;
    side(keys.get(key)?)
}

/// Height and width: one number for both, a list, or by name.
pub(super) fn sides(value: &Value) -> Option<[usize; 2]> {
    match value {
        Value::Array(list) => match &list[..] {
            [both] => side(both).map(|both| [both; 2]),
            [height, width] => Some([side(height)?, side(width)?]),
            _ => None,
        },
        Value::Object(keys) if keys.values().filter(|it| !it.is_null()).count() == 2 => {
            Some([side(keys.get("height")?)?, side(keys.get("width")?)?])
        }
        other => side(other).map(|both| [both; 2]),
    }
}

/// A number for each channel: one for all, a list, or the default of three channels.
pub(super) fn channel_numbers(
    value: Option<Value>,
    channels: usize,
    default: [f64; 3],
) -> Option<Vec<f64>> {
    let finite = |value: &Value| value.as_f64().filter(|value| value.is_finite());
    match value {
        None if default.iter().all(|value| *value == default[0]) => {
            Some(vec![default[0]; channels])
        }
        None => (channels == default.len()).then(|| default.to_vec()),
        Some(Value::Array(list)) => {
            let numbers: Option<Vec<f64>> = list.iter().map(finite).collect();
            numbers.filter(|numbers| numbers.len() == channels)
        }
        Some(one) => finite(&one).map(|one| vec![one; channels]),
    }
}
