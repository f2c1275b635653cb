//! Tokens against Hugging Face's own package: `tests/texts/make.py` made the tokenizers, and wrote what the package makes of the texts.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use packhorse_preprocess::{TextError, Tokenizer, TokenizerError, Tokens};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    /// By the text's index.
    whole: Vec<Encoding>,
    /// By the most tokens.
    cut: BTreeMap<usize, Vec<Encoding>>,
    /// By the pair's index: whole, and cut to nine tokens and to twelve.
    pairs: Vec<[Encoding; 3]>,
}

#[derive(Deserialize)]
struct Encoding {
    ids: Vec<u32>,
    type_ids: Vec<u32>,
}

impl Encoding {
    fn is(&self, tokens: &Tokens) -> bool {
        *self.ids == *tokens.ids && *self.type_ids == *tokens.type_ids
    }
}

fn file(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/texts");
    fs::read(folder.join(name)).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::read(&file(&format!("{name}.json"))).unwrap()
}

#[test]
fn tokens_are_those_of_hugging_face_whole_and_cut() {
    let expected: BTreeMap<String, Expected> =
        serde_json::from_slice(&file("expected.json")).unwrap();
    let texts: Vec<String> = serde_json::from_slice(&file("texts.json")).unwrap();
    assert_eq!(expected.len(), 3);
    let mut wrong = Vec::new();
    for (name, expected) in &expected {
        let tokenizer = tokenizer(name);
        for (text, whole) in texts.iter().zip(&expected.whole) {
            let tokens = tokenizer.tokens(text.as_bytes(), usize::MAX, false);
            let is_right = match &tokens {
                Ok(tokens) => whole.is(tokens),
                Err(error) => *error == TextError::Empty && whole.ids.is_empty(),
            };
            if !is_right {
                wrong.push(format!("{name}, {text:?}: {tokens:?}"));
            }
        }
        for (&limit, cut) in &expected.cut {
            for (text, cut) in texts.iter().zip(cut) {
                let tokens = tokenizer.tokens(text.as_bytes(), limit, true);
                if !tokens.as_ref().is_ok_and(|tokens| cut.is(tokens)) {
                    wrong.push(format!("{name} cut to {limit}, {text:?}: {tokens:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn tokens_of_pairs_are_those_of_hugging_face_whole_and_cut() {
    let expected: BTreeMap<String, Expected> =
        serde_json::from_slice(&file("expected.json")).unwrap();
    let pairs: Vec<[String; 2]> = serde_json::from_slice(&file("pairs.json")).unwrap();
    let mut wrong = Vec::new();
    for (name, expected) in &expected {
        let tokenizer = tokenizer(name);
        for (pair, [whole, nine, twelve]) in pairs.iter().zip(&expected.pairs) {
            let [first, second] = [0, 1].map(|i| tokenizer.cut(pair[i].as_bytes()).unwrap());
            let tokens = tokenizer.pair_tokens(&first, &second, usize::MAX, false);
            if !tokens.as_ref().is_ok_and(|tokens| whole.is(tokens)) {
                wrong.push(format!("{name}, {pair:?}: {tokens:?}"));
            }
            for (limit, cut) in [(9, nine), (12, twelve)] {
                let tokens = tokenizer.pair_tokens(&first, &second, limit, true);
                if !tokens.as_ref().is_ok_and(|tokens| cut.is(tokens)) {
                    wrong.push(format!(
                        "{name} cut to {limit}, {pair:?}: {tokens:?}, not {:?}",
                        cut.ids
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_fills_up_rows_is_the_token_that_the_file_names() {
    assert_eq!(tokenizer("bytelevel").pad(), 1);
    assert_eq!(tokenizer("unigram").pad(), 0);
}

#[test]
fn what_is_no_text_or_too_much_of_it_is_refused_with_the_limit() {
    let tokenizer = tokenizer("wordpiece");
    let error = |text: &[u8]| tokenizer.tokens(text, 6, false).unwrap_err().to_string();
    assert_eq!(error(b"ab\xff"), "it is not UTF-8: byte 2 is wrong");
    assert_eq!(error(b"ab\xed\xa0\x80"), "it is not UTF-8: byte 2 is wrong");
    let large = vec![b'a'; Tokenizer::MAX_TEXT_BYTES + 1];
    assert_eq!(error(&large), "it has 65537 bytes, over the limit of 65536");
    let long = error("the dog ".repeat(6).as_bytes());
    assert_eq!(
        long,
        "it has 14 tokens, over the limit of 6 that the model declares (max_length)"
    );
}

#[test]
fn a_text_takes_no_more_memory_than_is_counted_for_it() {
    let mut most = 0;
    for name in ["wordpiece", "bytelevel", "unigram"] {
        let tokenizer = tokenizer(name);
        for part in [
            "a",
            "a ",
            "the dog ",
            "0123456789",
            "日",
            "e\u{301}",
            "!?",
            " ",
            "\u{fdfa}",
            "aB1!日 ",
        ] {
            let text = part.repeat(Tokenizer::MAX_TEXT_BYTES / part.len());
            let taken = allocation_counter::measure(|| {
                let tokens = tokenizer.tokens(text.as_bytes(), 512, true);
                assert!(tokens.is_ok(), "{name}, {part:?}: {tokens:?}");
            });
            most = most.max(taken.bytes_max / text.len() as u64);
        }
    }
    // It is not counted many times either.
    assert!(
        (Tokenizer::WORK / 2..=Tokenizer::WORK).contains(&most),
        "{most} bytes for each byte of a text"
    );
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused_with_what_is_wrong() {
    for (bad, expected) in [
        (&b""[..], "EOF while parsing"),
        (b"{}", "not a tokenizer.json of Hugging Face: "),
        (b"\x80\x02}q\x00.", "not a tokenizer.json of Hugging Face: "),
        (
            br#"{"version":"1.0","model":{"type":"Nothing"}}"#,
            "not a tokenizer.json of Hugging Face: ",
        ),
    ] {
        let error = Tokenizer::read(bad).unwrap_err();
        assert!(matches!(error, TokenizerError::Format(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

proptest! {
    /// Any text has at most as many tokens as are wanted, and a shorter limit gives no other tokens than the first of the longer one, but for those
    /// that the tokenizer adds.
    #[test]
    fn a_cut_text_begins_as_the_whole_one(text in "\\PC{0,80}", limit in 3_usize..20) {
        for name in ["wordpiece", "bytelevel", "unigram"] {
            let tokenizer = tokenizer(name);
            let cut = match tokenizer.tokens(text.as_bytes(), limit, true) {
                Ok(cut) => cut,
                Err(TextError::Empty) => continue,
                Err(error) => panic!("{text:?}: {error}"),
            };
            let whole = tokenizer.tokens(text.as_bytes(), usize::MAX, false).unwrap();
            prop_assert!(cut.len() <= limit);
            prop_assert_eq!(cut.len(), whole.len().min(limit));
            prop_assert_eq!(&cut.ids[..cut.len() - 1], &whole.ids[..cut.len() - 1]);
            prop_assert_eq!(cut.ids.last(), whole.ids.last());
        }
    }
}
