//! Small archives for tests, as PyTorch writes them: stored or deflated members.

use std::io::Write as _;

use flate2::{Compression, Crc, write::DeflateEncoder};

/// Returns an archive with these members. Those with code are deflated.
pub(crate) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    for (name, content) in members {
        let is_code = name.contains("/code/");
        let mut crc = Crc::new();
        crc.update(content);
        let stored = if is_code {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        } else {
            content.to_vec()
        };
        let offset = u32::try_from(bytes.len()).unwrap();
        let mut common = Vec::new();
        common.extend([20, 0, 0, 0, if is_code { 8 } else { 0 }, 0, 0, 0, 0, 0]);
        common.extend(crc.sum().to_le_bytes());
        common.extend(u32::try_from(stored.len()).unwrap().to_le_bytes());
        common.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
        common.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        common.extend([0, 0]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(name.as_bytes());
        bytes.extend(stored);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let offset = u32::try_from(bytes.len()).unwrap();
    let count = u16::try_from(members.len()).unwrap();
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
    bytes.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    bytes.extend(u32::try_from(directory.len()).unwrap().to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}
