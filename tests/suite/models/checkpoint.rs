//! Files of weights, taken apart and written by hand, independently of what reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// A file in the temporary folder, removed when it is dropped.
pub struct Temporary(pub PathBuf);

impl Temporary {
    pub fn new(name: &str) -> Self {
        let name = format!("burn-natten-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub fn with(name: &str, bytes: &[u8]) -> Self {
        let file = Self::new(name);
        std::fs::write(&file.0, bytes).expect("the temporary folder is writable");
        file
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The tensors of a safetensors file, by key.
pub type Entries = BTreeMap<String, Entry>;

/// Its tensors and its metadata.
pub fn read_safetensors(path: &Path) -> (Entries, Value) {
    let file = std::fs::read(path).expect("the file is there");
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&rest[..length]).expect("is JSON");
    let mut entries = Entries::new();
    let mut metadata = Value::Null;
    for (key, value) in header {
        if key == "__metadata__" {
            metadata = value;
            continue;
        }
        let number = |value: &Value| value.as_u64().expect("a number") as usize;
        let numbers = |name: &str| -> Vec<usize> {
            value[name].as_array().expect("a list").iter().map(number).collect()
        };
        let range = numbers("data_offsets");
        let entry = Entry {
            dtype: value["dtype"].as_str().expect("a name").to_owned(),
            shape: numbers("shape"),
            bytes: rest[length..][range[0]..range[1]].to_vec(),
        };
        entries.insert(key, entry);
    }
    (entries, metadata)
}

pub fn write_safetensors(entries: &Entries) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = vec![];
    for (key, entry) in entries {
        let range = [data.len(), data.len() + entry.bytes.len()];
        let entry_json =
            json!({ "dtype": entry.dtype, "shape": entry.shape, "data_offsets": range });
        header.insert(key.clone(), entry_json);
        data.extend_from_slice(&entry.bytes);
    }
    let header = serde_json::to_vec(&header).expect("is JSON");
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// The same tensors under other keys.
pub fn renamed(entries: &Entries, rename: impl Fn(&str) -> String) -> Entries {
    entries.iter().map(|(key, entry)| (rename(key), entry.clone())).collect()
}

/// Puts the pickled object of a `.pth` file into a dictionary: `{part: object, "epoch": 3}`.
pub fn nested(pth: &[u8], part: &str) -> Vec<u8> {
    let mut files = unzip(pth);
    let (_, pickle) =
        files.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).expect("a pickle");
    assert!(pickle.starts_with(b"\x80\x02") && pickle.ends_with(b"."), "protocol 2");
    let text =
        |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let object = pickle[2..pickle.len() - 1].to_vec();
    // An empty dictionary, then twice key, value and "set item", and the end.
    let nested = [b"\x80\x02}", &text(part)[..], &object, b"s", &text("epoch"), b"K\x03s."];
    *pickle = nested.concat();
    zip(&files)
}

fn number(bytes: &[u8], offset: usize, length: usize) -> usize {
    bytes[offset..][..length].iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte))
}

/// The files of an archive that does not compress.
fn unzip(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let end = archive.windows(4).rposition(|bytes| bytes == b"PK\x05\x06").expect("an archive");
    let count = number(archive, end + 10, 2);
    let mut at = number(archive, end + 16, 4);
    let mut files = vec![];
    for _ in 0..count {
        assert_eq!(&archive[at..][..4], b"PK\x01\x02");
        assert_eq!(number(archive, at + 10, 2), 0, "is not compressed");
        let [size, name, extra, comment] = [(20, 4), (28, 2), (30, 2), (32, 2)]
            .map(|(offset, length)| number(archive, at + offset, length));
        let local = number(archive, at + 42, 4);
        let start = local + 30 + number(archive, local + 26, 2) + number(archive, local + 28, 2);
        let text = String::from_utf8(archive[at + 46..][..name].to_vec()).expect("a name");
        files.push((text, archive[start..][..size].to_vec()));
        at += 46 + name + extra + comment;
    }
    files
}

fn zip(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (vec![], vec![]);
    for (name, bytes) in files {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        let size = (bytes.len() as u32).to_le_bytes();
        // Not compressed, no time; the size twice, as it would be if it were compressed.
        let common = [
            &[0; 2][..],
            &[0; 2],
            &[0; 4],
            &crc.sum().to_le_bytes(),
            &size,
            &size,
            &(name.len() as u16).to_le_bytes(),
            &[0; 2],
        ]
        .concat();
        let offset = (archive.len() as u32).to_le_bytes();
        let version = [20, 0];
        archive.extend([&b"PK\x03\x04"[..], &version, &common, name.as_bytes(), bytes].concat());
        let entry =
            [&b"PK\x01\x02"[..], &version, &version, &common, &[0; 10], &offset, name.as_bytes()];
        directory.extend(entry.concat());
    }
    let count = (files.len() as u16).to_le_bytes();
    let end = [
        &b"PK\x05\x06"[..],
        &[0; 4],
        &count,
        &count,
        &(directory.len() as u32).to_le_bytes(),
        &(archive.len() as u32).to_le_bytes(),
        &[0; 2],
    ];
    [archive, directory, end.concat()].concat()
}
