//! The answers to what is no request. hyper gives them itself, with a status and no body; clients read the body `{"error": …}` of every error.

use packhorse_api::ErrorBody;

use super::limits::HEAD_LIMIT;

/// The header line of an answer without a body, as hyper writes it.
const NO_BODY: &[u8] = b"content-length: 0\r\n";

/// Returns an answer of hyper's own with a body; `None` for any other bytes.
pub(super) fn with_body(answer: &[u8]) -> Option<Vec<u8>> {
    let error = match answer.strip_prefix(b"HTTP/1.1 ")?.first_chunk()? {
        b"400" => "the head of the request is not valid HTTP/1.1".to_owned(),
        b"414" => "the target of the request is too long".to_owned(),
        b"431" => format!(
            "the head of the request is larger than the limit of {HEAD_LIMIT} bytes, or has more than 100 fields"
        ),
        _ => return None,
    };
    let at = memchr::memmem::find(answer, NO_BODY)?;
    let (before, after) = (&answer[..at], &answer[at + NO_BODY.len()..]);
    if !after.ends_with(b"\r\n\r\n") && after != b"\r\n" {
        return None;
    }
    let body = serde_json::to_string(&ErrorBody { error }).expect("a text is JSON");
    let length = format!(
        "content-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    Some([before, length.as_bytes(), after, body.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_hypers_own_gets_a_body() {
        let own = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        let answer = String::from_utf8(with_body(own).unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let length = format!("\r\ncontent-length: {}\r\n", body.len());
        assert!(
            head.contains(&length) && head.ends_with("date: now"),
            "{head}"
        );
        let body: ErrorBody = serde_json::from_str(body).unwrap();
        assert!(body.error.contains("not valid HTTP/1.1"));
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nHTTP/1.1",
            b"HTTP/1.1 40",
            b"{}",
            b"",
        ] {
            assert_eq!(with_body(other), None);
        }
    }
}
