//! Pictures against Pillow: `tests/pictures/make.py` made them, and wrote what Pillow and torchvision make of them.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use packhorse_cluster::{Datatype, ImagePreprocess};
use packhorse_preprocess::{Head, PictureError, write_row};
use proptest::prelude::*;
use serde::Deserialize;
use sha2::{Digest, Sha256};

#[derive(Deserialize)]
struct Expected {
    declarations: BTreeMap<String, ImagePreprocess>,
    sha256: BTreeMap<String, BTreeMap<String, String>>,
}

fn file(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pictures");
    fs::read(folder.join(name)).unwrap()
}

fn row(
    bytes: &[u8],
    declared: &ImagePreprocess,
    datatype: Datatype,
) -> Result<Vec<u8>, PictureError> {
    let head = Head::read(bytes)?;
    let mut row = Vec::new();
    write_row(bytes, &head, declared, datatype, &mut row)?;
    Ok(row)
}

fn declared() -> ImagePreprocess {
    serde_json::from_str(r#"{"resize":{"shortest":8},"crop":[6,6]}"#).unwrap()
}

#[test]
fn rows_are_those_of_pillow_and_torchvision_to_the_bit() {
    let expected: Expected = serde_json::from_slice(&file("expected.json")).unwrap();
    let mut wrong = Vec::new();
    for (name, pictures) in &expected.sha256 {
        let declared = &expected.declarations[name];
        let datatype = if name == "larger" {
            Datatype::Uint8
        } else {
            Datatype::Fp32
        };
        for (picture, digest) in pictures {
            let row = row(&file(picture), declared, datatype).unwrap();
            if *Sha256::digest(row) != hex::decode(digest).unwrap() {
                wrong.push(format!("{picture}, {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_is_not_taken_is_refused_by_name() {
    for (name, expected) in [
        (
            "cmyk.jpg",
            "the JPEG is not supported: CMYK; convert it to RGB",
        ),
        ("sixteen.png", "the PNG is not supported: 16 bits a channel"),
        ("animated.png", "the PNG is not supported: animated"),
        ("animated.webp", "the WebP is not supported: animated"),
        ("truncated.jpg", "the JPEG is damaged: "),
        (
            "picture.gif",
            "not a picture of JPEG, PNG or WebP: it begins with 47 49 46 38",
        ),
    ] {
        let error = row(&file(name), &declared(), Datatype::Fp32).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{name}: {error}");
    }
    assert_eq!(Head::read(&[]), Err(PictureError::Empty));
}

#[test]
fn a_bomb_is_refused_by_its_head() {
    let mut large = file("one.png");
    large[16..20].copy_from_slice(&20_000_u32.to_be_bytes());
    let refused = |bytes: &[u8]| Head::read(bytes).unwrap_err().to_string();
    assert_eq!(
        refused(&large),
        "the PNG has 20000 x 1 pixels, over the limit of 16384 a side"
    );
    large[16..20].copy_from_slice(&16_000_u32.to_be_bytes());
    large[20..24].copy_from_slice(&16_000_u32.to_be_bytes());
    assert_eq!(
        refused(&large),
        "the PNG has 16000 x 16000 pixels, over the limit of 50000000 together"
    );
    let progressive = file("progressive.jpg");
    let scan = memchr::memmem::find(&progressive, b"\xff\xda").unwrap();
    let mut scans = progressive[..scan].to_vec();
    for _ in 0..101 {
        scans.extend(b"\xff\xda\0\x08\x01\x01\0\0\0\0");
    }
    assert_eq!(
        refused(&scans),
        "the JPEG is not supported: more than 100 scans"
    );
}

#[test]
fn a_picture_cut_anywhere_is_refused_and_none_is_half_read() {
    for name in ["444.jpg", "rgb.png", "lossless.webp"] {
        let whole = file(name);
        for length in (0..whole.len() - 16).step_by(97) {
            assert!(
                row(&whole[..length], &declared(), Datatype::Fp32).is_err(),
                "{name} to {length}"
            );
        }
    }
}

#[test]
fn fp16_is_the_rounded_fp32() {
    let expected: Expected = serde_json::from_slice(&file("expected.json")).unwrap();
    let declared = &expected.declarations["bilinear"];
    let wide = row(&file("420.jpg"), declared, Datatype::Fp32).unwrap();
    let half = row(&file("420.jpg"), declared, Datatype::Fp16).unwrap();
    let rounded = wide.chunks_exact(4).flat_map(|bytes| {
        half::f16::from_f32(f32::from_le_bytes(bytes.try_into().unwrap())).to_le_bytes()
    });
    assert!(rounded.eq(half));
}

fn any_declaration() -> impl Strategy<Value = ImagePreprocess> {
    let side = 1_u32..80;
    let resize = prop_oneof![
        side.clone()
            .prop_map(|side| (format!(r#"{{"shortest":{side}}}"#), [side, side])),
        (side.clone(), side).prop_map(|(h, w)| (format!(r#"{{"exact":[{h},{w}]}}"#), [h, w])),
    ];
    (resize, 1_u32..80, 1_u32..80, 0..32_u32).prop_map(|((resize, [h, w]), crop_h, crop_w, bits)| {
        let pick = |bit: u32, words: [&'static str; 2]| words[(bits >> bit & 1) as usize];
        let text = format!(
            r#"{{"resize":{resize},"crop":[{},{}],"filter":"{}","crop_rounding":"{}","channels":"{}","layout":"{}","exif":{}}}"#,
            crop_h.min(h),
            crop_w.min(w),
            pick(0, ["bilinear", "bicubic"]),
            pick(1, ["half-even", "floor"]),
            pick(2, ["RGB", "BGR"]),
            pick(3, ["NCHW", "NHWC"]),
            pick(4, ["false", "true"]),
        );
        serde_json::from_str(&text).unwrap()
    })
}

fn any_picture() -> impl Strategy<Value = Vec<u8>> {
    let names = [
        "422.jpg",
        "progressive.jpg",
        "turned-6.jpg",
        "alpha.png",
        "palette.png",
        "lossy.webp",
        "lossless-alpha.webp",
    ];
    prop::sample::select(names.to_vec()).prop_map(file)
}

proptest! {
    #[test]
    fn any_picture_and_declaration_make_a_row_of_the_declared_size(
        picture in any_picture(), declared in any_declaration(),
    ) {
        let row = row(&picture, &declared, Datatype::Fp32).unwrap();
        let elements: u64 = declared.row_dims().iter().product();
        prop_assert_eq!(row.len() as u64, elements * 4);
    }

    #[test]
    fn no_bytes_panic(
        picture in any_picture(), declared in any_declaration(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(), is_cut in any::<bool>(),
    ) {
        let mut picture = picture;
        for (at, value) in changes {
            // The places that decide lie at the beginning.
            let at = at.index(picture.len()).min(at.index(700));
            picture[at] = value;
        }
        if is_cut {
            picture.truncate(cut.index(picture.len()));
        }
        if Head::read(&picture).is_ok_and(|head| head.pixels() < 1 << 20) {
            let _ = row(&picture, &declared, Datatype::Uint8);
        }
    }

    #[test]
    fn no_bytes_at_all_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_usize..4) {
        let heads: [&[u8]; 4] = [b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8"];
        let bytes = [heads[kind], &bytes].concat();
        let _ = Head::read(&bytes);
    }
}
