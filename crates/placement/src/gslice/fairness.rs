//! Max-min fairness.

/// Returns max-min fair parts of `total`, in the order of `wanted`: a want below an equal part of what is left is granted in full, and
/// the others share the rest equally. Wants are not negative.
///
/// Source: water filling, e.g. Bertsekas and Gallager, "Data Networks", section 6.5.2.
pub(super) fn max_min(wanted: &[f64], total: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut granted = vec![0.0; wanted.len()];
    let mut left = total;
    for (served, &index) in order.iter().enumerate() {
        let equal = left / (order.len() - served) as f64;
        granted[index] = wanted[index].min(equal);
        left -= granted[index];
    }
    granted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_wants_are_granted_and_the_others_share_the_rest() {
        // The second wants 10 of 100. The other 90 are 45 for each of two, of which the third wants 40: the first gets 50.
        assert_eq!(max_min(&[80.0, 10.0, 40.0], 100.0), [50.0, 10.0, 40.0]);
        assert_eq!(max_min(&[80.0, 10.0, 60.0], 100.0), [45.0, 10.0, 45.0]);
        assert_eq!(max_min(&[3.0, 4.0], 100.0), [3.0, 4.0]);
        assert!(max_min(&[], 100.0).is_empty());
    }
}
