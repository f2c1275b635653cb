//! Models' files.

use std::io::Cursor;

use packhorse_artifact::{Archive, Artifact, FileKind};

/// The most bytes of a member that are taken over into the second archive.
const MEMBER: u64 = 1 << 16;

/// A model's file, and the archive in it once more with the checksums that its members have: without them a changed member is only refused.
pub(crate) fn file(input: &[u8]) {
    let _ = FileKind::recognise(Cursor::new(input));
    let _ = Artifact::read(Cursor::new(input));
    let Ok(mut archive) = Archive::open(Cursor::new(input)) else {
        return;
    };
    let names: Vec<String> = archive.names().map(str::to_owned).collect();
    let members = names.into_iter().filter_map(|name| {
        let content = archive.read_head(&name, MEMBER).ok()?;
        Some((name, content))
    });
    let again = stored(&members.collect::<Vec<_>>());
    if let Ok(artifact) = Artifact::read(Cursor::new(&again)) {
        let signature = artifact.signature;
        if let (Some(registration), Some(inputs)) = (artifact.registration, signature.inputs) {
            assert_eq!(registration.inputs.len(), inputs.len());
        }
    }
}

/// Returns an archive with these members as they are.
fn stored(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in members {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("members are small");
        let mut entry = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        entry.extend(crc(content).to_le_bytes());
        entry.extend(length(content).to_le_bytes());
        entry.extend(length(content).to_le_bytes());
        entry.extend((name.len() as u16).to_le_bytes());
        entry.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&entry);
        directory.extend([0; 10]);
        directory.extend(length(&bytes).to_le_bytes());
        directory.extend(name.as_bytes());
        bytes.extend(b"PK\x03\x04");
        bytes.extend(entry);
        bytes.extend(name.as_bytes());
        bytes.extend(content);
    }
    let offset = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
    bytes.extend([(members.len() as u16).to_le_bytes(); 2].concat());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

/// Returns the checksum of a member.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
