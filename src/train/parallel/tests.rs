use std::collections::HashMap;

use candle_core::{DType, Device};

use super::*;
use crate::ops::support::testing::{Random, values};

/// Runs `work` on every rank of a group, and returns the results by rank.
fn on_ranks<T: Send>(world: usize, work: impl Fn(ThreadCommunicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ThreadCommunicator::group(world)
            .into_iter()
            .map(|communicator| scope.spawn(|| work(communicator)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn sum(communicator: &dyn Communicator, values: &Tensor) -> Result<Tensor> {
    communicator.start(Collective::AllReduceSum, values)?.finish()
}

fn full(value: f32, size: usize) -> Tensor {
    Tensor::full(value, size, &Device::Cpu).unwrap()
}

#[test]
fn every_rank_gets_the_sum_over_many_rounds() {
    for world in [1, 2, 5] {
        let sums = on_ranks(world, |communicator| {
            (0..50)
                .map(|round| {
                    let value = (communicator.rank() * 100 + round) as f32;
                    let given = Tensor::full(value, 3, &Device::Cpu).unwrap();
                    values(&sum(&communicator, &given).unwrap())[2]
                })
                .collect::<Vec<f32>>()
        });
        let of_ranks = (world * (world - 1) / 2 * 100) as f32;
        for sums in sums {
            for (round, sum) in sums.into_iter().enumerate() {
                assert_eq!(sum, of_ranks + (world * round) as f32);
            }
        }
    }
}

#[test]
fn buckets_are_taken_apart_as_they_were_put_together() {
    let shapes: [&[usize]; 5] = [&[3, 2], &[1], &[BUCKET + 5], &[0], &[7]];
    let averages = on_ranks(2, |communicator| {
        let mut random = Random::new(communicator.rank() as u64);
        let tensors: Vec<Tensor> = shapes.iter().map(|shape| random.tensor(shape)).collect();
        let named = tensors.iter().enumerate().map(|(i, t)| (i.to_string(), t.clone()));
        let mut gradients = Gradients::from_tensors(named).unwrap();
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        average_gradients(&communicator, &mut gradients).unwrap();
        let average: Vec<Tensor> =
            gradients.names().to_vec().iter().map(|n| gradients.get(n).unwrap().unwrap()).collect();
        (tensors, average)
    });
    for (place, shape) in shapes.iter().enumerate() {
        let found = &averages[0].1[place];
        assert_eq!(found.dims(), *shape);
        let expected = ((&averages[0].0[place] + &averages[1].0[place]).unwrap() * 0.5).unwrap();
        assert_eq!(values(found), values(&expected));
        assert_eq!(values(found), values(&averages[1].1[place]));
    }
}

#[test]
fn all_start_from_rank_0() {
    let tensors = on_ranks(3, |communicator| {
        let own = Tensor::full(communicator.rank() as f32 + 7.0, (2, 2), &Device::Cpu).unwrap();
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        broadcast_all(&communicator, &[own]).unwrap()
    });
    assert!(tensors.iter().all(|tensors| values(&tensors[0]) == [7.0; 4]));
}

/// A rank may start many exchanges before it finishes the first, and finish them in another order.
#[test]
fn exchanges_may_be_under_way_together() {
    let found = on_ranks(3, |communicator| {
        let rank = communicator.rank() as f32;
        let start = |collective, value| communicator.start(collective, &full(value, 2)).unwrap();
        let first = start(Collective::AllReduceSum, rank);
        let second = start(Collective::Broadcast, rank + 5.0);
        let third = start(Collective::AllReduceSum, 10.0 * rank);
        // Dropped by one rank, and of no concern to the others.
        let fourth = start(Collective::AllReduceSum, 1.0);
        if communicator.rank() > 0 {
            fourth.finish().unwrap();
        }
        [third, first, second].map(|transfer| values(&transfer.finish().unwrap())[1])
    });
    assert_eq!(found, [[30.0, 3.0, 5.0]; 3]);
}

#[test]
fn ranks_that_exchange_different_things_are_told() {
    let cases = [(Collective::Broadcast, 2), (Collective::AllReduceSum, 3)];
    for (collective, size) in cases {
        let failed = on_ranks(2, |communicator| {
            let own = match communicator.rank() {
                0 => (Collective::AllReduceSum, 2),
                _ => (collective, size),
            };
            let transfer = communicator.start(own.0, &full(1.0, own.1));
            transfer.and_then(Transfer::finish).unwrap_err().to_string()
        });
        assert!(failed.iter().any(|message| message.contains("something else")), "{failed:?}");
    }
}

#[test]
fn plans_keep_the_order_and_the_capacity() {
    let buckets = |sizes: &[usize], order: &[usize]| {
        format!("{:?}", Plan::new(sizes, order.iter().copied(), 10))
    };
    assert!(buckets(&[3, 4, 4, 12, 1], &[4, 2, 1, 3, 0]).contains("[[4, 2, 1], [3], [0]]"));
    assert!(buckets(&[10, 1, 9, 1], &[0, 1, 2, 3]).contains("[[0], [1, 2], [3]]"));
    assert!(buckets(&[], &[]).contains("buckets: []"));
}

/// Ranks send in the order of the plan, whatever they find first and whether they find it at all.
#[test]
fn buckets_leave_in_order_and_as_soon_as_they_can() {
    let sent = on_ranks(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let plan = Arc::new(Plan::new(&[1, 1, 1, 1], [3, 2, 1, 0], 2));
        let mut exchange = Exchange::new(communicator, Collective::AllReduceSum, plan);
        let mut tensors = vec![None; 4];
        let mut sent = Vec::new();
        // Rank 1 never finds number 2.
        for place in [[3, 2, 0, 1], [1, 0, 3, 3]][rank] {
            tensors[place] = Some(full((10 * rank + place) as f32, 1));
            exchange.complete(place, &mut tensors).unwrap();
            sent.push((0..4).filter(|place| exchange.has_sent(*place)).count());
        }
        if rank == 1 {
            tensors[2] = Some(full(0.0, 1));
        }
        let like = full(0.0, 1);
        let sums = exchange.finish(tensors, &[&like; 4]).unwrap();
        (sent, sums.iter().map(|sum| values(sum)[0]).collect::<Vec<_>>())
    });
    assert_eq!(sent[0].0, [0, 2, 2, 4]);
    assert_eq!(sent[1].0, [0; 4]);
    assert_eq!(sent[0].1, [10.0, 12.0, 2.0, 16.0]);
    assert_eq!(sent[0].1, sent[1].1);
}

#[test]
fn a_rank_that_is_gone_fails_the_others() {
    let results = on_ranks(3, |communicator| {
        let given = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
        sum(&communicator, &given).unwrap();
        if communicator.rank() == 1 {
            return None;
        }
        Some(sum(&communicator, &given).unwrap_err().to_string())
    });
    for message in [&results[0], &results[2]] {
        assert!(message.as_ref().unwrap().contains("rank"), "{message:?}");
    }
}

fn launch(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    Launch::from_variables(|name| variables.get(name).map(|value| (*value).to_owned()))
}

#[test]
fn launchers_are_understood() {
    let torchrun = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "10.0.0.3"),
        ("MASTER_PORT", "1234"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
    ];
    let found = launch(&torchrun).unwrap().unwrap();
    let expected = Launch {
        rank: 5,
        world_size: 8,
        local_rank: 1,
        address: "10.0.0.3".to_owned(),
        port: 1234,
    };
    assert_eq!(found, expected);
    // torchrun's own process listens at the port that it names.
    let elastic = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
    assert_eq!(launch(&elastic).unwrap().unwrap(), Launch { port: 1235, ..expected });
    let slurm = |hosts| {
        let variables = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODELIST", hosts),
        ];
        launch(&variables).unwrap().unwrap()
    };
    assert_eq!(slurm("node[07-09,12],login").address, "node07");
    assert_eq!(slurm("gpu-a,gpu-b").address, "gpu-a");
    assert_eq!(slurm("gpu[3,5]").address, "gpu3");
    let alone = slurm("alone");
    assert_eq!((alone.address.as_str(), alone.port, alone.rank), ("alone", 29500, 3));
    let mpi = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ];
    let mpi = launch(&mpi).unwrap().unwrap();
    assert_eq!((mpi.rank, mpi.world_size, mpi.address.as_str()), (1, 2, "127.0.0.1"));
    assert_eq!(launch(&[("PATH", "/bin")]).unwrap(), None);
    assert_eq!(launch(&[("RANK", "0")]).unwrap(), None);
}

#[test]
fn wrong_variables_are_named() {
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("RANK", "x"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], "`RANK` is `x`"),
        (&[("RANK", "2"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], "below WORLD_SIZE (2)"),
        (&[("RANK", "0"), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "0")], "below WORLD_SIZE (0)"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "`LOCAL_RANK` is absent"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "70000")],
            "`MASTER_PORT` is `70000`",
        ),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "1"),
                ("MASTER_PORT", "65535"),
                ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ],
            "`MASTER_PORT` is 65535",
        ),
    ];
    for (variables, part) in cases {
        let message = launch(variables).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}
