use super::format::{Entry, Header, Notes};
use super::*;

#[test]
fn headers_and_entries_keep_their_values_and_notice_a_changed_byte() {
    let size = PictureSize { height: 3, width: 5, channels: 7 };
    let header =
        Header { size, n_pictures: 1 << 40, key: 11 << 77, body_crc: 13, n_note_bytes: 17 };
    let bytes = header.encode();
    assert_eq!(Header::decode(&bytes), Some(header));
    for at in 0..bytes.len() {
        let mut changed = bytes;
        changed[at] ^= 1;
        assert_eq!(Header::decode(&changed), None, "{at}");
    }
    assert_eq!(Header::decode(&bytes[..63]), None);
    for split in [None, Some(Split::Train), Some(Split::Validation)] {
        let entry = Entry { class: 3, split, name_end: 1 << 50 };
        assert_eq!(Entry::decode(entry.encode()), entry);
    }
    let notes = Notes { classes: vec!["ü".to_owned()], n_left_out: 0, first_left_out: None };
    let text = serde_json::to_vec(&notes).unwrap();
    assert_eq!(serde_json::from_slice::<Notes>(&text).unwrap(), notes);
}
