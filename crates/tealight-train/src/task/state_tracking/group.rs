//! Small groups: cyclic, symmetric, alternating.

use tealight_model::names;

names! {
    /// The elements of the group that are read.
    pub enum Generators {
        /// All elements.
        "all" => All,
        /// 0 and 1, of a cyclic group: counting the ones.
        "step" => Step,
        /// The identity and all exchanges of two objects, of a symmetric group.
        "swaps" => Swaps,
        /// The exchange of the first two objects and the cycle of all, of a symmetric group.
        "pair" => Pair,
    }
}

/// The largest cyclic group, and the most objects that are permuted.
pub(super) const MAX_CYCLIC: usize = 64;
pub(super) const MAX_OBJECTS: usize = 5;

/// A group with its elements in a fixed order, of which the first is the identity.
#[derive(Debug)]
pub(super) struct Group {
    elements: Elements,
    /// x after y, at x·order + y.
    table: Vec<usize>,
}

#[derive(Debug)]
enum Elements {
    /// 0 to n − 1.
    Cyclic(usize),
    /// Permutations in lexicographic order: the image of each object. All of them, or the even ones.
    Permutations { all: Vec<Vec<usize>>, are_even: bool },
}

impl Group {
    /// `Z2` to `Z64`, `S2` to `S5`, `A3` to `A5`; `None` of any other name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let (kind, n) = name.split_at_checked(1)?;
        if n.starts_with('0') || !n.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let n: usize = n.parse().ok()?;
        let elements = match kind {
            "Z" if (2..=MAX_CYCLIC).contains(&n) => Elements::Cyclic(n),
            "S" if (2..=MAX_OBJECTS).contains(&n) => {
                Elements::Permutations { all: permutations(n), are_even: false }
            }
            "A" if (3..=MAX_OBJECTS).contains(&n) => {
                let even = permutations(n).into_iter().filter(|one| is_even(one)).collect();
                Elements::Permutations { all: even, are_even: true }
            }
            _ => return None,
        };
        let table = match &elements {
            Elements::Cyclic(n) => (0..n * n).map(|i| (i / n + i % n) % n).collect(),
            Elements::Permutations { all, .. } => {
                let place = |product: &Vec<usize>| {
                    all.binary_search(product).expect("invariant: a group is closed")
                };
                let after = |x: &[usize], y: &[usize]| y.iter().map(|&i| x[i]).collect();
                all.iter().flat_map(|x| all.iter().map(move |y| place(&after(x, y)))).collect()
            }
        };
        Some(Self { elements, table })
    }

    /// The number of elements.
    pub(super) fn order(&self) -> usize {
        match &self.elements {
            Elements::Cyclic(n) => *n,
            Elements::Permutations { all, .. } => all.len(),
        }
    }

    /// x after y.
    pub(super) fn product(&self, x: usize, y: usize) -> usize {
        self.table[x * self.order() + y]
    }

    /// The elements that symbols stand for; `None` if the group has no such generators.
    pub(super) fn letters(&self, generators: Generators) -> Option<Vec<usize>> {
        let moved =
            |one: &[usize]| one.iter().enumerate().filter(|&(i, &image)| i != image).count();
        match (generators, &self.elements) {
            (Generators::All, _) => Some((0..self.order()).collect()),
            (Generators::Step, Elements::Cyclic(_)) => Some(vec![0, 1]),
            (Generators::Swaps, Elements::Permutations { all, are_even: false }) => {
                let few = all.iter().enumerate().filter(|(_, one)| matches!(moved(one), 0 | 2));
                Some(few.map(|(element, _)| element).collect())
            }
            (Generators::Pair, Elements::Permutations { all, are_even: false }) => {
                let n = all[0].len();
                let swap: Vec<usize> = [1, 0].into_iter().chain(2..n).collect();
                let cycle: Vec<usize> = (1..n).chain([0]).collect();
                let place = |one: &Vec<usize>| all.binary_search(one).ok();
                Some(vec![place(&swap)?, place(&cycle)?])
            }
            _ => None,
        }
    }

    /// A number, or the images of all objects.
    pub(super) fn name(&self, element: usize) -> String {
        match &self.elements {
            Elements::Cyclic(_) => element.to_string(),
            Elements::Permutations { all, .. } => {
                let images = all.get(element).into_iter().flatten();
                images.map(ToString::to_string).collect()
            }
        }
    }
}

/// All permutations of `0..n` in lexicographic order.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    (0..n).fold(vec![Vec::new()], |shorter, _| {
        let longer = shorter.iter().flat_map(|one: &Vec<usize>| {
            let next = (0..n).filter(|i| !one.contains(i));
            next.map(|i| one.iter().copied().chain([i]).collect())
        });
        longer.collect()
    })
}

fn is_even(permutation: &[usize]) -> bool {
    let pairs = (0..permutation.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    pairs.filter(|&(i, j)| permutation[i] > permutation[j]).count().is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_groups() {
        for (name, order) in
            [("Z2", 2), ("Z64", 64), ("S2", 2), ("S3", 6), ("S5", 120), ("A3", 3), ("A5", 60)]
        {
            let group = Group::from_name(name).unwrap();
            assert_eq!(group.order(), order, "{name}");
            for x in 0..order {
                assert_eq!((group.product(0, x), group.product(x, 0)), (x, x), "{name}");
                let mut row: Vec<usize> = (0..order).map(|y| group.product(x, y)).collect();
                row.sort_unstable();
                assert!(row.iter().copied().eq(0..order), "{name}: a product stands twice");
                let (y, z) = ((7 * x + 3) % order, (5 * x + 1) % order);
                let left = group.product(group.product(x, y), z);
                assert_eq!(left, group.product(x, group.product(y, z)), "{name}");
            }
        }
        for name in ["", "Z", "Z1", "Z65", "Z02", "S1", "S6", "A2", "A6", "D4", "Z+3", "Zé"] {
            assert!(Group::from_name(name).is_none(), "{name}");
        }
    }

    /// Applied to a row of objects, the second first.
    #[test]
    fn a_product_applies_its_second_element_first() {
        let group = Group::from_name("S3").unwrap();
        let of = |name: &str| (0..6).find(|&one| group.name(one) == name).unwrap();
        assert_eq!(group.name(0), "012");
        assert_eq!(group.name(group.product(of("102"), of("021"))), "120");
    }

    #[test]
    fn generators_are_those_of_their_names() {
        let letters = |name: &str, generators| {
            let group = Group::from_name(name).unwrap();
            let letters: Option<Vec<usize>> = group.letters(generators);
            letters.map(|all| all.iter().map(|&one| group.name(one)).collect::<Vec<_>>())
        };
        let three = ["012", "021", "102", "210"].map(str::to_owned).to_vec();
        assert_eq!(letters("S3", Generators::Swaps), Some(three));
        assert_eq!(letters("S5", Generators::Swaps).unwrap().len(), 11);
        assert_eq!(letters("S3", Generators::Pair), Some(vec!["102".to_owned(), "120".to_owned()]));
        assert_eq!(letters("Z5", Generators::Step), Some(vec!["0".to_owned(), "1".to_owned()]));
        for (name, generators) in
            [("S3", Generators::Step), ("A5", Generators::Swaps), ("Z2", Generators::Pair)]
        {
            assert_eq!(letters(name, generators), None, "{name}");
        }
    }
}
