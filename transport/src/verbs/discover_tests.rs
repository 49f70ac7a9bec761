#![allow(clippy::unwrap_used)]

use super::*;

/// Two devices: one with two ports of which the first is down, one with one port.
fn machine() -> Vec<Nic> {
    let nic = |device: &str, port, ports, active| Nic {
        name: if ports > 1 { format!("{device}:{port}") } else { device.into() },
        device: device.into(),
        port,
        active,
        infiniband: false,
        mtu: 4096,
        atomicity: Atomicity::Device,
        pci: None,
        gids: vec![],
    };
    vec![nic("mlx5_0", 1, 3, false), nic("mlx5_0", 2, 3, true), nic("mlx5_0", 3, 3, true), nic("mlx5_1", 1, 1, true)]
}

fn selected(list: Option<(bool, &[&str])>, port: Option<u8>) -> Result<Vec<String>> {
    let nic_list =
        list.map(|(exclude, names)| NicList { exclude, names: names.iter().map(ToString::to_string).collect() });
    let settings = Settings { ib_port: port, nic_list, ..Settings::default() };
    let chosen = select(&machine(), &settings)?;
    Ok(chosen.into_iter().map(|nic| nic.name).collect())
}

#[test]
fn the_first_active_port_of_each_device_unless_told_otherwise() {
    for (list, port, expected) in [
        (None, None, vec!["mlx5_0:2", "mlx5_1"]),
        (None, Some(1), vec!["mlx5_1"]),
        (None, Some(3), vec!["mlx5_0:3"]),
        (Some((false, &["mlx5_1", "mlx5_0"][..])), None, vec!["mlx5_1", "mlx5_0:2"]),
        (Some((false, &["mlx5_0:3", "mlx5_0:2"][..])), None, vec!["mlx5_0:3", "mlx5_0:2"]),
        (Some((false, &["mlx5_1:1"][..])), None, vec!["mlx5_1"]),
        (Some((true, &["mlx5_1"][..])), None, vec!["mlx5_0:2"]),
    ] {
        assert_eq!(selected(list, port).unwrap(), expected, "{list:?} {port:?}");
    }
}

#[test]
fn what_does_not_exist_is_answered_with_what_does() {
    for (list, port, wanted) in [
        (None, Some(4), "SYMRAIL_IB_PORT=4"),
        (Some((false, &["mlx5_1", "mlx4_0"][..])), None, "mlx4_0 of SYMRAIL_NIC_LIST"),
        (Some((true, &["mlx5_0", "mlx5_1"][..])), None, "SYMRAIL_NIC_LIST"),
        (Some((false, &["mlx5_0:1"][..])), None, "an active port"),
    ] {
        let error = selected(list, port).unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("mlx5_0 port 1 (down"), "{error}");
    }
}

#[test]
fn numbers_in_names_sort_as_numbers() {
    let mut names = ["mlx5_10", "mlx5_2", "ibp3s0", "mlx5_0"];
    names.sort_by_key(|name| natural(name));
    assert_eq!(names, ["ibp3s0", "mlx5_0", "mlx5_2", "mlx5_10"]);
}
