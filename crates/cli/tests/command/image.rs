//! `packhorse infer --image`.

use packhorse_cluster::Shape;
use packhorse_protocol::Tensor;

use packhorse_stand_in::Gateway;

use crate::infer::{doubled, serves};

/// Encodes RGB pixels as a PNG file.
fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(pixels).unwrap();
    writer.finish().unwrap();
    file
}

#[tokio::test]
async fn an_image_is_classified() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    // Answers the normalised value of the middle pixel per channel, as if these were scores of three classes.
    serves(&gateway, "image", |request| {
        let input = &request.inputs[0];
        assert_eq!(
            (input.name(), input.shape().dims()),
            ("image", &[1, 3, 3, 3][..])
        );
        let values = input.values::<f32>().unwrap();
        Tensor::from_values(
            "y",
            Shape::new(&[1, 3]).unwrap(),
            &[values[4], values[13], values[22]],
        )
        .unwrap()
    })
    .await;
    let mut pixels = [[9; 3]; 5 * 7];
    pixels[3 * 5 + 2] = [0, 51, 255];
    gateway.file("cat.png", png(5, 7, pixels.as_flattened()));
    gateway.file("labels.txt", "red\ngreen\nblue\n");
    gateway.file(
        "m.toml",
        "crop = 3\nmean = [0.5]\nstd = [1.0]\nlayout = \"nchw\"\n",
    );

    let flags = [
        "infer",
        "m",
        "--image",
        "cat.png",
        "--top",
        "2",
        "--labels",
        "labels.txt",
        "--std",
        "0.5",
    ];
    let by_flags = gateway
        .run(&[&flags[..], &["--crop", "3", "--mean", "0.5", "--json"]].concat())
        .json();
    let classes = &by_flags["classes"][0];
    let names = [0, 1].map(|i| (classes[i]["index"].as_u64(), classes[i]["label"].as_str()));
    assert_eq!(names, [(Some(2), Some("blue")), (Some(1), Some("green"))]);
    // (1 - 0.5) / 0.5 and (0.2 - 0.5) / 0.5
    let scores = [0, 1].map(|i| classes[i]["score"].as_f64().unwrap());
    assert!(
        (scores[0] - 1.0).abs() < 1e-6 && (scores[1] + 0.6).abs() < 1e-6,
        "{scores:?}"
    );
    let by_file = gateway.run(&[&flags[..], &["--preprocess", "m.toml"]].concat());
    let lines: Vec<&str> = by_file.text().lines().collect();
    assert_eq!(lines[1..], ["1.0000   blue", "-0.6000  green"]);
}

#[tokio::test]
async fn a_file_that_is_not_an_image_is_named() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway, "x", doubled).await;
    gateway.file("cat.jpg", "meow");
    let ran = gateway.run(&["infer", "m", "--image", "cat.jpg"]);
    assert!(
        ran.error()
            .starts_with("error: cannot decode the image cat.jpg: "),
        "{ran:?}"
    );
}

#[tokio::test]
async fn an_invalid_size_is_wrong_usage() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let ran = gateway.run_bare(&["infer", "m", "--image", "cat.jpg", "--crop", "0"]);
    assert_eq!(ran.code, 2, "{ran:?}");
}
