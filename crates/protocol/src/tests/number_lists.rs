//! Lists of numbers of every length and spelling: they are read as the standard library reads each number, and an error names the element.

use packhorse_cluster::Datatype;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{data_of, parse, single};

/// A number as clients write them: mostly short.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => r"-?(0|[1-9][0-9]{0,3})\.[0-9]{1,9}",
        3 => "-?(0|[1-9][0-9]{0,2})",
        1 => r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?",
    ]
}

fn comma() -> impl Strategy<Value = &'static str> {
    select([",", ",", ", ", " ,", ",\n  "].as_slice())
}

/// Joins the numbers with the commas, in lists of `columns` if that is given.
fn list(numbers: &[String], commas: &[&str], columns: Option<usize>) -> String {
    let mut text = String::new();
    for (index, number) in numbers.iter().enumerate() {
        let begins = columns.is_some_and(|columns| index % columns == 0);
        if index > 0 {
            text += if begins { "]" } else { "" };
            text += commas[index % commas.len()];
        }
        text += if begins { "[" } else { "" };
        text += number;
    }
    format!("[{text}{}]", if columns.is_some() { "]" } else { "" })
}

fn bytes_of(datatype: Datatype, dims: &[i64], data: &str) -> Result<Vec<u8>, String> {
    let body = data_of(datatype, &format!("{dims:?}"), data);
    let request = parse(body.as_bytes(), None, &single(datatype, dims))?;
    Ok(request.inputs[0].data().to_bytes().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn floats_are_the_nearest_to_what_is_written(
        numbers in vec(number(), 24),
        commas in vec(comma(), 7),
        columns in select([None, Some(1), Some(4), Some(12)].as_slice()),
    ) {
        let columns_or_all = columns.unwrap_or(1);
        let dims = [24 / columns_or_all, columns_or_all].map(|dim| i64::try_from(dim).unwrap());
        let data = list(&numbers, &commas, columns);
        let single: Vec<f32> = numbers.iter().map(|text| text.parse().unwrap()).collect();
        prop_assume!(single.iter().all(|value| value.is_finite()));
        let single: Vec<u8> = single.into_iter().flat_map(f32::to_le_bytes).collect();
        prop_assert_eq!(bytes_of(Datatype::Fp32, &dims, &data), Ok(single), "{}", &data);
        let double: Vec<f64> = numbers.iter().map(|text| text.parse().unwrap()).collect();
        let double: Vec<u8> = double.into_iter().flat_map(f64::to_le_bytes).collect();
        prop_assert_eq!(bytes_of(Datatype::Fp64, &dims, &data), Ok(double), "{}", &data);
    }

    #[test]
    fn integers_are_read_up_to_their_range(
        values in vec(prop_oneof![4 => -128_i64..=127, 1 => any::<i64>()], 24),
        commas in vec(comma(), 7),
    ) {
        let numbers: Vec<String> = values.iter().map(i64::to_string).collect();
        let data = list(&numbers, &commas, None);
        let wide: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        prop_assert_eq!(bytes_of(Datatype::Int64, &[24], &data), Ok(wide));
        let narrow = bytes_of(Datatype::Int8, &[24], &data);
        match values.iter().position(|value| i8::try_from(*value).is_err()) {
            None => prop_assert_eq!(narrow, Ok(values.iter().map(|value| *value as u8).collect())),
            Some(index) => {
                let error = narrow.unwrap_err();
                let named = format!("data[{index}]: {} is out of the range of INT8", values[index]);
                prop_assert!(error.ends_with(&named), "{}", error);
            }
        }
    }

    #[test]
    fn an_error_names_the_element(
        mut numbers in vec(number(), 24),
        commas in vec(comma(), 7),
        index in 0..24_usize,
        bad in select(["nan", "1.", "-", "+1", ".5", "01", "1e", "1.5.5", "\"1\"", "null", "1e400", ""].as_slice()),
    ) {
        numbers[index] = bad.to_owned();
        let data = list(&numbers, &commas, None);
        let error = bytes_of(Datatype::Fp64, &[24], &data).unwrap_err();
        // The beginning of what is written may be a number.
        let is_named = error.contains(&format!("data[{index}]: "));
        prop_assert_eq!(is_named, !matches!(bad, "01" | "1.5.5"), "{}: {}", data, error);
    }
}
