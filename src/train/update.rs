//! What an update is made of: losses and gradients of this rank's batches, averaged over all ranks.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::batch::{Batch, BatchSource, Position};
use super::collector::Collector;
use super::gradients::Gradients;
use super::network::Network;
use super::optimizer::kernels;
use super::options::option;
use super::parallel::{Plan, Ranks};
use super::parameters::Parameter;
use super::random::Random;
use super::random_sampler::RandomSampler;
use super::verdict::Approval;
use crate::error::{Error, Result};

/// What was computed of an update, on the device of the network.
pub(super) struct Computed {
    /// Means over batches and ranks, `[L]` f32. Not finite if those of one rank are not, or if it has failed.
    pub losses: Tensor,
    /// Means over this rank's batches.
    pub own_losses: Tensor,
    /// Means over batches and ranks.
    pub gradients: Gradients,
    /// Ids of the images that this rank has seen.
    pub images: Vec<u64>,
    /// Why this rank has nothing to add, of several.
    pub failure: Option<Error>,
}

/// What this rank has computed, apart from gradients.
struct Own {
    losses: Tensor,
    images: Vec<u64>,
}

/// What updates are computed with.
pub(super) struct Work<'a> {
    pub network: &'a Network,
    pub parameters: &'a Arc<[Parameter]>,
    pub plan: &'a Arc<Plan>,
    pub ranks: Ranks<'a>,
    pub seed: u64,
}

impl Work<'_> {
    /// Computes an update from some batches of an epoch.
    ///
    /// Of several ranks, one that fails goes through all exchanges, so that nobody waits for it, and spoils the losses, so
    /// that nobody makes the update.
    pub fn compute(
        &self,
        source: &mut dyn BatchSource,
        epoch: u64,
        indices: Range<usize>,
    ) -> Result<Computed> {
        let batches = indices.len();
        let collector = self.collector();
        match self.of_batches(source, epoch, indices, &collector) {
            Ok(own) => self.exchange(own, collector, batches),
            Err(error) if self.ranks.is_alone() => Err(error),
            Err(failure) => {
                let computed = self.exchange(self.nothing()?, collector, batches)?;
                Ok(Computed { failure: Some(failure), ..computed })
            }
        }
    }

    /// Takes part in an update without adding to it, after a failure that the others have yet to hear of.
    pub fn abstain(&self, batches: usize) -> Result<Computed> {
        self.exchange(self.nothing()?, self.collector(), batches)
    }

    fn collector(&self) -> Collector {
        Collector::new(self.parameters.clone(), self.ranks.exchange_of_gradients(self.plan))
    }

    /// Losses that spoil an update.
    fn nothing(&self) -> Result<Own> {
        let losses = vec![f32::NAN; self.network.loss_names().len()];
        Ok(Own { losses: Tensor::new(losses, self.network.device())?, images: Vec::new() })
    }

    /// Losses of this rank's batches; their gradients go to the collector.
    fn of_batches(
        &self,
        source: &mut dyn BatchSource,
        epoch: u64,
        indices: Range<usize>,
        collector: &Collector,
    ) -> Result<Own> {
        let share = 1.0 / indices.len() as f64;
        let last = indices.end - 1;
        let seed = Random::new(self.seed).part(self.ranks.communicator.rank() as u64).bits();
        let mut images = Vec::new();
        let mut losses: Option<Tensor> = None;
        for index in indices {
            let batch: Batch = source.batch(Position { epoch, index })?;
            images.extend(batch.targets.iter().map(|target| target.image_id));
            let part = Random::new(seed).part(epoch).bits();
            let mut sampler = RandomSampler::new(part, index as u64);
            let evaluated = self.network.evaluate(&batch, &mut sampler)?;
            let sum = match &losses {
                Some(sum) => sum,
                None => losses.insert(kernels::state_like(evaluated.values())?),
            };
            kernels::blend(sum, 1.0, (evaluated.values(), share), Approval::NotNeeded)?;
            if index == last {
                collector.begin_last_pass();
            }
            let receiver = collector.clone();
            evaluated
                .backward(self.parameters, move |place, gradient| receiver.add(place, gradient))?;
        }
        let losses = losses.ok_or_else(|| option("batches_per_update", "0", "1"))?;
        Ok(Own { losses, images })
    }

    /// Averages over batches and ranks.
    fn exchange(&self, own: Own, collector: Collector, batches: usize) -> Result<Computed> {
        let mut gradients = collector.finish()?;
        let world = self.ranks.communicator.world_size();
        gradients.scale(1.0 / (batches * world) as f64);
        let losses = self.ranks.mean(&own.losses)?;
        let Own { losses: own_losses, images } = own;
        Ok(Computed { losses, own_losses, gradients, images, failure: None })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use candle_core::Device;

    use super::*;
    use crate::config;
    use crate::image_input::ImageInput;
    use crate::structures::{BoxXyxy, Target};
    use crate::train::Freezing;
    use crate::train::parallel::{Collective, Communicator, Transfer};

    /// One of two ranks, the other of which always has the same; notes when something is sent.
    #[derive(Default)]
    struct Mirrored {
        events: Mutex<Vec<Event>>,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Event {
        Found,
        Sent,
    }

    impl Mirrored {
        fn note(&self, event: Event) {
            self.events.lock().unwrap().push(event);
        }
    }

    impl Communicator for Mirrored {
        fn rank(&self) -> usize {
            0
        }

        fn world_size(&self) -> usize {
            2
        }

        fn start(&self, _: Collective, values: &Tensor) -> Result<Transfer> {
            self.note(Event::Sent);
            Ok(Transfer::arrived((values * 2.0)?))
        }
    }

    fn network() -> Network {
        let mut model = config::get("fasterrcnn_resnet50_fpn").unwrap();
        model.body.as_resnet_mut().unwrap().width = 4;
        model.neck.as_fpn_mut().unwrap().channels = 8;
        (model.image.min_size, model.image.max_size) = (64, 64);
        model.architecture.as_rcnn_mut().unwrap().box_head.hidden = 16;
        let freezing = Freezing::backbone(&model, 5);
        Network::from_random(&model, 1, freezing, &Device::Cpu).unwrap()
    }

    fn batch() -> Batch {
        let image = ImageInput::from_rgb8(64, 64, (0..64 * 64 * 3).map(|i| i as u8).collect());
        let target = Target {
            image_id: 7,
            boxes: vec![BoxXyxy { x1: 8.0, y1: 8.0, x2: 40.0, y2: 48.0 }],
            labels: vec![3],
            masks: Vec::new(),
            keypoints: Vec::new(),
        };
        Batch { images: vec![image.unwrap()], targets: vec![target], min_size: None }
    }

    /// All but the last bucket are on their way before the backward pass is over.
    #[test]
    fn gradients_travel_during_the_backward_pass() {
        let network = network();
        let parameters: Arc<[Parameter]> = network.parameters().trainable().into();
        let sizes: Vec<usize> = parameters.iter().map(|p| p.var.elem_count()).collect();
        let order = network.parameters().as_built(&parameters).into_iter().rev();
        let plan = Arc::new(Plan::new(&sizes, order, sizes.iter().sum::<usize>() / 8));
        let mirrored = Arc::new(Mirrored::default());
        let communicator: Arc<dyn Communicator> = mirrored.clone();
        let ranks = Ranks { communicator: &communicator, device: network.device() };
        let collector = Collector::new(parameters.clone(), ranks.exchange_of_gradients(&plan));
        let evaluate = || network.evaluate(&batch(), &mut RandomSampler::new(1, 0)).unwrap();
        let expected = evaluate().gradients(&parameters).unwrap();
        collector.begin_last_pass();
        let receiver = collector.clone();
        let watched = mirrored.clone();
        evaluate()
            .backward(&parameters, move |place, gradient| {
                watched.note(Event::Found);
                receiver.add(place, gradient)
            })
            .unwrap();
        let found = collector.finish().unwrap();
        let events = mirrored.events.lock().unwrap();
        let last = events.iter().rposition(|event| *event == Event::Found).unwrap();
        let sent = |events: &[Event]| events.iter().filter(|event| **event == Event::Sent).count();
        let (during, all) = (sent(&events[..last]), sent(&events));
        assert!(all >= 6 && during == all - 1, "{during} of {all}");
        for ((sum, own), name) in found.parts().0.iter().zip(expected.parts().0).zip(found.names())
        {
            let difference = (sum - (own * 2.0).unwrap()).unwrap().abs().unwrap();
            let largest = difference.flatten_all().unwrap().max(0).unwrap();
            assert_eq!(largest.to_scalar::<f32>().unwrap(), 0.0, "{name}");
        }
    }
}
