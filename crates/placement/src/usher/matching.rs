//! The matching of groups whose compute and memory requirements balance.

use rustworkx_core::{max_weight_matching::max_weight_matching, petgraph::graph::UnGraph};

/// A group of models to be matched.
pub(super) struct Group {
    /// `ΣCreq − ΣMreq`, in millionths of a percentage point.
    pub(super) imbalance: i64,
    /// A name that no other group has.
    pub(super) name: String,
}

/// The seed of [`tie_breaker`]. It is one with which figures 5.6, 6.2 and 6.3 of the thesis come out as printed; the thesis does not
/// specify how its own solver breaks ties.
const SEED: u64 = 58;

/// Returns a matching with as many pairs as possible and, among those, the smallest sum of `|imbalance_i + imbalance_j|`. If all groups require more compute than memory,
/// every matching that leaves out the same group has the same sum. The choice among equals depends on the names only, not on the order:
/// the matching with the smallest sum of [`tie_breaker`] is taken.
///
/// Source: the minimum-weight maximum-cardinality matching of Elvinger's thesis, section 5.2.2 (Edmonds' blossoms).
pub(super) fn balanced_pairs(groups: &[Group]) -> Vec<(usize, usize)> {
    let mut graph = UnGraph::<(), i128>::new_undirected();
    let nodes: Vec<_> = groups.iter().map(|_| graph.add_node(())).collect();
    for (i, a) in groups.iter().enumerate() {
        for (j, b) in groups.iter().enumerate().skip(i + 1) {
            graph.add_edge(nodes[i], nodes[j], weight(a, b));
        }
    }
    let Ok(matched) = max_weight_matching(
        &graph,
        true,
        |edge| Ok::<_, std::convert::Infallible>(*edge.weight()),
        false,
    );
    let mut pairs: Vec<(usize, usize)> = matched
        .into_iter()
        .map(|(i, j)| (i.min(j), i.max(j)))
        .collect();
    pairs.sort_unstable();
    pairs
}

/// Returns the weight of a pair, larger for better pairs. It combines two criteria: the sum of the tie breakers over all pairs stays
/// below one unit of imbalance.
fn weight(a: &Group, b: &Group) -> i128 {
    const LARGEST: i128 = 1 << 110;
    let imbalance = i128::from((a.imbalance + b.imbalance).abs());
    LARGEST - ((imbalance << 60) + i128::from(tie_breaker(&a.name, &b.name)))
}

/// Returns a 24-bit hash of a pair of names (FNV-1a and a multiplication), so that different sets of pairs almost never have the same
/// sum.
fn tie_breaker(a: &str, b: &str) -> u64 {
    let (first, second) = (a.min(b), a.max(b));
    let bytes = first.bytes().chain([0]).chain(second.bytes());
    let hash = bytes.fold(SEED, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(imbalances: &[i64]) -> Vec<(usize, usize)> {
        let group = |(i, &imbalance): (usize, &i64)| Group {
            imbalance,
            name: format!("model-{i}"),
        };
        let groups: Vec<Group> = imbalances.iter().enumerate().map(group).collect();
        balanced_pairs(&groups)
    }

    #[test]
    fn complements_are_paired() {
        assert_eq!(pairs(&[50, -10, 10, -50]), [(0, 3), (1, 2)]);
    }

    #[test]
    fn the_most_unbalanced_one_is_left_over_where_compute_exceeds_memory_everywhere() {
        let matched = pairs(&[71, 99, 82, 74, 87]);
        assert_eq!(matched.len(), 2);
        assert!(
            matched.iter().all(|&(i, j)| i != 1 && j != 1),
            "{matched:?}"
        );
    }

    #[test]
    fn the_order_does_not_matter() {
        let names = ["a", "b", "c", "d"];
        let matched = |names: &[&str]| {
            let group = |name: &&str| Group {
                imbalance: 5,
                name: (*name).to_owned(),
            };
            let groups: Vec<Group> = names.iter().map(group).collect();
            let mut pairs: Vec<_> = balanced_pairs(&groups)
                .into_iter()
                .map(|(i, j)| (names[i].min(names[j]), names[i].max(names[j])))
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .collect();
            pairs.sort();
            pairs
        };
        let reversed: Vec<&str> = names.iter().rev().copied().collect();
        assert_eq!(matched(&names), matched(&reversed));
    }

    #[test]
    fn one_or_none_has_no_pair() {
        assert_eq!(pairs(&[]), []);
        assert_eq!(pairs(&[7]), []);
    }
}
