//! Orders that the members of a cohort tell, through real sockets.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use coprep_protocol::message::{Attach, CohortRequest, RefusalKind, Reply, Request, ResumePoint};
use coprep_protocol::{frame, order};

mod common;

use common::Node;

const SAMPLES: u32 = 50;

impl Node {
    fn connect(&self) -> Member {
        let socket = UnixStream::connect(self.folder.path().join("run/coordinator.sock")).unwrap();
        let limit = Some(Duration::from_secs(30));
        socket.set_read_timeout(limit).unwrap();
        let member = Member(socket);
        let hello = Request::Hello {
            name: "test".into(),
            pid: std::process::id(),
        };
        member.send(&hello);
        assert!(matches!(member.hear(), Heard::Other(Reply::Welcome { .. })));
        member
    }

    fn attach(&self, change: impl FnOnce(&mut Attach)) -> Member {
        let member = self.connect();
        let mut attach = of_two();
        change(&mut attach);
        member.send(&Request::Attach(Box::new(attach)));
        match member.hear() {
            Heard::Other(Reply::Attached(_)) => member,
            // An order may arrive before the reply to `Attach`.
            Heard::Order(..) => panic!("it is asked for by `attach_late`"),
            Heard::Other(reply) => panic!("{reply:?}"),
        }
    }

    /// Attaches a member that is handed an order. Returns its job and the order.
    fn attach_late(&self) -> (u64, Vec<u32>) {
        let member = self.connect();
        member.send(&Request::Attach(Box::new(of_two())));
        let heard = [member.hear(), member.hear()];
        let mut orders = heard.into_iter().filter_map(|heard| match heard {
            Heard::Order(epoch, ids) => Some((epoch, ids)),
            Heard::Other(_) => None,
        });
        orders.next().unwrap()
    }

    fn refused(&self, change: impl FnOnce(&mut Attach)) -> RefusalKind {
        let member = self.connect();
        let mut attach = of_two();
        change(&mut attach);
        member.send(&Request::Attach(Box::new(attach)));
        member.refused()
    }
}

fn of_two() -> Attach {
    Attach {
        is_told: true,
        cohort: Some(CohortRequest {
            name: "c".into(),
            size: 2,
        }),
        ..common::attach(common::numbers(SAMPLES), 8)
    }
}

/// A connection of one member.
struct Member(UnixStream);

enum Heard {
    Order(u64, Vec<u32>),
    Other(Reply),
}

impl Member {
    fn send(&self, request: &Request) {
        frame::send(&self.0, request, &[]).unwrap();
    }

    fn tell(&self, epoch: u64, ids: &[u32], is_settled: bool) {
        self.tell_so_many(epoch, ids, ids.len() as u32, is_settled);
    }

    fn tell_so_many(&self, epoch: u64, ids: &[u32], samples: u32, is_settled: bool) {
        let file = order::write(ids).unwrap();
        let request = Request::TellOrder {
            epoch,
            samples,
            is_settled,
        };
        frame::send(&self.0, &request, &[file.as_raw_fd()]).unwrap();
    }

    fn begin(&self, epoch: u64, ids: &[u32]) {
        self.send(&Request::EpochStarted { epoch });
        self.tell(epoch, ids, false);
    }

    fn hear(&self) -> Heard {
        let (reply, files) = frame::receive::<Reply>(&self.0).unwrap();
        let Reply::Order { epoch, samples } = reply else {
            return Heard::Other(reply);
        };
        let file = files.into_iter().next().unwrap();
        Heard::Order(epoch, order::read(file, samples).unwrap())
    }

    fn is_handed(&self) -> (u64, Vec<u32>) {
        match self.hear() {
            Heard::Order(epoch, ids) => (epoch, ids),
            Heard::Other(reply) => panic!("{reply:?}"),
        }
    }

    /// Asserts that the member is handed nothing: a request that is sent now is answered first.
    fn is_handed_nothing(&self) {
        self.send(&Request::Explain);
        assert!(matches!(self.hear(), Heard::Other(Reply::Explanation(_))));
    }

    fn refused(&self) -> RefusalKind {
        match self.hear() {
            Heard::Other(Reply::Refused(refusal)) => refusal.kind,
            Heard::Other(reply) => panic!("{reply:?}"),
            Heard::Order(..) => panic!("an order"),
        }
    }
}

#[test]
fn the_first_member_to_begin_an_epoch_says_its_order() {
    let node = Node::start();
    let one = node.attach(|_| ());
    one.begin(0, &[3, 1, 3]);
    one.is_handed_nothing();
    let other = node.attach(|_| ());
    let told = (0, vec![3, 1, 3]);
    assert_eq!([one.is_handed(), other.is_handed()], [told.clone(), told]);
    other.begin(0, &[2, 2]);
    other.is_handed_nothing();
    one.is_handed_nothing();
}

#[test]
fn nothing_is_settled_while_a_member_knows_an_order_and_has_not_told_it() {
    let node = Node::start();
    let resume = ResumePoint {
        epoch: 4,
        delivered: Vec::new(),
        batches: 0,
        is_done: false,
        skipped: Vec::new(),
        carried: Vec::new(),
    };
    let nothing = empty_set();
    let back = |attach: &mut Attach| {
        attach.resume = Some(ResumePoint {
            delivered: nothing.clone(),
            ..resume.clone()
        });
    };
    let one = node.attach(back);
    one.begin(4, &[3, 1, 3]);
    let other = node.attach(|attach| {
        back(attach);
        attach.knows_order_of = Some(4);
    });
    one.is_handed_nothing();
    other.tell(4, &[7, 8], true);
    let told = (4, vec![7, 8]);
    assert_eq!([one.is_handed(), other.is_handed()], [told.clone(), told]);
}

#[test]
fn a_member_that_leaves_before_it_has_told_what_it_knows_is_not_awaited() {
    let node = Node::start();
    let one = node.attach(|_| ());
    one.begin(0, &[3, 1, 3]);
    drop(node.attach(|attach| attach.knows_order_of = Some(0)));
    assert_eq!(one.is_handed(), (0, vec![3, 1, 3]));
}

#[test]
fn a_member_that_comes_later_is_handed_the_order() {
    let node = Node::start();
    let one = node.attach(|_| ());
    let other = node.attach(|_| ());
    one.begin(0, &[5]);
    assert_eq!(other.is_handed(), (0, vec![5]));
    drop(other);
    assert_eq!(node.attach_late(), (0, vec![5]));
}

#[test]
fn an_order_that_makes_no_sense_is_refused_and_another_is_taken() {
    let node = Node::start();
    let one = node.attach(|_| ());
    let other = node.attach(|_| ());
    one.tell(0, &[0, SAMPLES], false);
    assert_eq!(one.refused(), RefusalKind::Invalid);
    one.tell_so_many(0, &[0, 1], 3, false);
    one.refused();
    one.tell_so_many(0, &[0, 1], u32::MAX, false);
    one.refused();
    one.send(&Request::TellOrder {
        epoch: 0,
        samples: 0,
        is_settled: false,
    });
    one.refused();
    // The member is not in epoch 7, so its order is ignored.
    one.tell(7, &[1], true);
    one.is_handed_nothing();
    one.begin(0, &[1]);
    assert_eq!(other.is_handed(), (0, vec![1]));
}

#[test]
fn who_could_not_be_told_orders_is_refused() {
    let node = Node::start();
    for change in [
        |attach: &mut Attach| attach.cohort = None,
        |attach: &mut Attach| attach.world_size = 2,
        |attach: &mut Attach| attach.subset = Some(empty_set()),
        |attach: &mut Attach| {
            attach.draws = Some(coprep_protocol::message::DrawsRequest {
                count: 3,
                weights: None,
            });
        },
    ] {
        assert_eq!(node.refused(change), RefusalKind::Invalid);
    }
}

/// Returns an empty Roaring bitmap.
fn empty_set() -> Vec<u8> {
    let mut bytes = Vec::new();
    roaring::RoaringBitmap::new()
        .serialize_into(&mut bytes)
        .unwrap();
    bytes
}
