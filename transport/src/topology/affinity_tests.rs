#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use crate::topology::Distance;
use crate::topology::detect::tests::described;
use crate::topology::place::tests::regular;

const NICS: [&str; 5] = ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1", "eno1"];

fn two_sockets() -> (Machine, Vec<NicLocation>) {
    let machine = described("two-sockets.sh");
    let nics = NICS.iter().map(|name| NicLocation::find(&machine, name, None)).collect();
    (machine, nics)
}

fn on(cpus: std::ops::Range<usize>) -> NumaAffinity {
    NumaAffinity { gpu: None, cpus: cpus.collect() }
}

fn names(order: &[Ranked]) -> Vec<&str> {
    order.iter().map(|nic| NICS[nic.nic]).collect()
}

#[test]
fn rails_are_ordered_by_the_pes_cores() {
    let (machine, nics) = two_sockets();
    let first = |affinity| names(&order(&machine, &nics, &affinity))[..3].join(" ");
    assert_eq!(first(on(12..16)), "mlx5_0:1 mlx5_1:1 mlx5_2:1");
    assert_eq!(first(on(4..6)), "mlx5_2:1 mlx5_3:1 eno1");
    // The PE is not bound, so all NICs are equally far and keep their order.
    assert_eq!(names(&order(&machine, &nics, &on(0..16))), NICS);
    let ranked = order(&machine, &nics, &on(0..8));
    assert_eq!((ranked[0].from_cores, ranked[0].from_gpu), (Distance::Package, None));
    assert_eq!(ranked[0].to_string(), "cores: same package");
}

#[test]
fn rails_are_ordered_by_the_gpu_first() {
    let (machine, nics) = two_sockets();
    let gpu = machine.at("0000:43:00.0".parse().unwrap()).unwrap().place.clone();
    // The GPU is on node 2, the cores on node 0. The bytes go to the GPU.
    let ranked = order(&machine, &nics, &NumaAffinity { gpu: Some(gpu), cpus: (0..4).collect() });
    assert_eq!(names(&ranked)[..2], ["mlx5_1:1", "mlx5_0:1"]);
    assert_eq!(ranked[0].to_string(), "GPU: same PCI switch, 2 bridges between; cores: across packages");
    // The cores decide among NICs that are equally far from the GPU.
    assert_eq!(names(&ranked)[2..], ["mlx5_3:1", "eno1", "mlx5_2:1"]);
}

#[test]
fn nics_of_unknown_place_come_last() {
    let (machine, mut nics) = two_sockets();
    nics.insert(0, NicLocation { name: "lo".into(), place: None });
    let ranked = order(&machine, &nics, &on(0..16));
    assert_eq!((ranked[5].nic, ranked[5].from_cores), (0, Distance::Unknown));
}

#[test]
fn each_pe_gets_its_own_near_nic() {
    let (machine, nics) = two_sockets();
    let pes: Vec<NumaAffinity> = (0..4).map(|pe| on(4 * pe..4 * pe + 4)).collect();
    let chosen = spread(&machine, &nics[..4], &pes);
    assert_eq!(chosen, [3, 2, 1, 0]);
    // With two PEs near each NIC, each NIC gets two.
    let twice: Vec<NumaAffinity> = pes.iter().flat_map(|pe| [pe.clone(), pe.clone()]).collect();
    assert_eq!(spread(&machine, &nics[..4], &twice), [3, 3, 2, 2, 1, 1, 0, 0]);
    // PEs that are not bound get NICs in turn.
    assert_eq!(spread(&machine, &nics[..4], &vec![on(0..16); 6]), [0, 1, 2, 3, 0, 1]);
    assert!(spread(&machine, &[], &pes).is_empty());
    assert!(spread(&machine, &nics, &[]).is_empty());
}

#[test]
fn pes_with_fewer_cores_to_choose_from_choose_first() {
    let (machine, nics) = two_sockets();
    // PE 0 may use any NIC, PE 1 is near mlx5_0 only. So PE 0 must not get that one.
    assert_eq!(spread(&machine, &nics[..2], &[on(0..16), on(12..16)]), [1, 0]);
}

#[test]
fn a_pes_rails_begin_with_its_share_and_a_mapping_is_all() {
    let (machine, nics) = two_sockets();
    let pes = vec![on(8..16); 3];
    let rails = |pe, mapping: Option<&str>| {
        let mapping = mapping.map(|text| text.parse().unwrap());
        rails_of(&machine, &nics, &pes, pe, mapping.as_ref()).map(|rails| names(&rails).join(" "))
    };
    // mlx5_0 and mlx5_1 are in the package. PEs 0 and 2 begin with one, PE 1 with the other, and all use all.
    assert_eq!(rails(0, None).unwrap(), "mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 eno1");
    assert_eq!(rails(1, None).unwrap(), "mlx5_1:1 mlx5_0:1 mlx5_2:1 mlx5_3:1 eno1");
    assert_eq!(rails(2, None).unwrap(), rails(0, None).unwrap());
    assert_eq!(rails(3, None).unwrap(), "");
    assert_eq!(rails(0, Some("mlx5_3:1:1,eno1:1:2")).unwrap(), "mlx5_3:1");
    assert_eq!(rails(2, Some("mlx5_3:1:1,eno1:1:2")).unwrap(), "eno1");
    assert!(rails(0, Some("mlx5_3:1:1")).unwrap_err().to_string().contains("the 3 PEs"));
    assert!(rails(0, Some("mlx5_9:1:3")).unwrap_err().to_string().contains("mlx5_9:1 does not"));
}

/// The smallest possible load of the busiest NIC, found by trying everything.
fn least_load(choices: &[Vec<usize>], load: &mut [usize]) -> usize {
    let Some((first, rest)) = choices.split_first() else { return load.iter().copied().max().unwrap_or(0) };
    let mut best = usize::MAX;
    for &nic in first {
        load[nic] += 1;
        best = best.min(least_load(rest, load));
        load[nic] -= 1;
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// For PEs and NICs anywhere in a machine: no PE gets a NIC farther away than necessary, and no spread is more
    /// even.
    #[test]
    fn spread_is_near_and_even(
        nics in proptest::collection::vec(0usize..7, 1..5),
        pes in proptest::collection::vec(0usize..7, 1..7),
    ) {
        let machine = regular(2, 2, 1, 1);
        // The machine has four nodes in two packages.
        let cpus = |at: usize| match at { 0..4 => at..at + 1, 4 => 0..2, 5 => 2..4, _ => 0..4 };
        let located: Vec<NicLocation> = nics
            .iter()
            .enumerate()
            .map(|(i, at)| NicLocation { name: i.to_string(), place: Some(Place::cores(cpus(*at).collect())) })
            .collect();
        let pes: Vec<NumaAffinity> = pes.iter().map(|at| on(cpus(*at))).collect();
        let chosen = spread(&machine, &located, &pes);
        prop_assert_eq!(chosen.len(), pes.len());
        let mut choices = Vec::new();
        let mut load = vec![0; located.len()];
        for (affinity, nic) in pes.iter().zip(&chosen) {
            let ranked = order(&machine, &located, affinity);
            let nearest = ranked[0].from_cores;
            let own = ranked.iter().find(|ranked| ranked.nic == *nic).unwrap();
            prop_assert_eq!(own.from_cores, nearest);
            choices.push(ranked.iter().filter(|nic| nic.from_cores == nearest).map(|nic| nic.nic).collect());
            load[*nic] += 1;
        }
        prop_assert_eq!(load.iter().max().copied(), Some(least_load(&choices, &mut vec![0; located.len()])));
    }
}
