//! Prints the table of `coprep_costs::lookahead`, which compares how even deliveries are under different orders of
//! starting samples.
#![expect(clippy::print_stdout, reason = "it prints a table")]

#[path = "../../../../coordinator/costs/tests/random/mod.rs"]
mod random;
#[path = "../../../../coordinator/costs/tests/workshop/mod.rs"]
mod workshop;

use coprep_costs::Recent;
use coprep_costs::lookahead::{SPREAD, window_needed};
use random::Random;
use workshop::{Batch, Order, Run, Workshop, batches, misjudged};

const MOST: u32 = 8;

fn main() {
    println!(
        "| slow | workers | as drawn | longest first | due less cost | spread | **rule** | missed | needed | makespan |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for tail in [10.0, 50.0, 200.0] {
        let known = batches(2000, tail, &mut Random(7));
        let missed = misjudged(known.clone(), &mut Random(8));
        for workers in [1, 2, 8, 16] {
            print!("| {tail} x | {workers} |");
            line(workers, &known, &missed);
        }
    }
}

fn line(workers: u32, known: &[Batch], missed: &[Batch]) {
    let run = |order, window, batches: &[Batch]| {
        let shop = Workshop {
            workers,
            window,
            order,
        };
        shop.run(batches)
    };
    let uneven = |run: &Run| run.gap(0.99) / run.period();
    for order in [Order::Drawn, Order::Longest, Order::Due, Order::Spread] {
        print!(" {:.1} |", uneven(&run(order, MOST, known)));
    }
    let rule = run(Order::StartPlan, MOST, known);
    print!(" **{:.1}** |", uneven(&rule));
    print!(" {:.1} |", uneven(&run(Order::StartPlan, MOST, missed)));
    let needed = needed(workers, known);
    let enough = run(Order::StartPlan, needed, known);
    print!(" {:.1} with {needed} |", uneven(&enough));
    println!(" {:.3} |", rule.makespan() / rule.share);
}

fn needed(workers: u32, batches: &[Batch]) -> u32 {
    let mut costs = Recent::new();
    batches.iter().flatten().for_each(|s| costs.observe(s.cost));
    costs.summary().map_or(0, |costs| {
        let period = 64.0 * costs.mean / workers as f32;
        window_needed(&costs, 64, period, SPREAD, MOST)
    })
}
