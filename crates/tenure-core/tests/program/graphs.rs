//! Captures and graphs of a program.

use tenure_driver::sys;

use super::world::{At, Done, Graph, World, driver, text};

impl World {
    pub(super) fn end_capture(&mut self) -> Done {
        let Some(capture) = self.capture.take() else { return Ok(()) };
        let raw = self.streams[usize::from(capture.stream)].raw;
        let graph = driver().stream_end_capture(raw).map_err(|e| format!("a capture was ended by somebody: {e}"))?;
        // SAFETY: made just now, and named by nobody else.
        let exec = unsafe { driver().graph_instantiate(graph, 0) }.map_err(text)?;
        // SAFETY: as above; the executable graph lives on by itself.
        unsafe { driver().graph_destroy(graph) }.map_err(text)?;
        let last = capture.own.then(|| self.here(capture.stream));
        self.graphs.push(Graph { exec: exec as usize, capture: capture.id, blocks: capture.blocks, last });
        Ok(())
    }

    pub(super) fn launch(&mut self, graph: u8, stream: u8) -> Done {
        if self.graphs.is_empty() || self.frozen(stream) || self.capture.is_some() {
            return Ok(());
        }
        let index = usize::from(graph) % self.graphs.len();
        let to = self.here(stream);
        let ids = self.graphs[index].blocks.clone();
        let users: Vec<usize> = (0..self.blocks.len()).filter(|i| ids.contains(&self.blocks[*i].id)).collect();
        // Memory of another graph is used by each run of that one, too.
        let lenders: Vec<u64> = users.iter().filter_map(|i| self.blocks[*i].of_capture).collect();
        let others = self.graphs.iter().filter(|g| lenders.contains(&g.capture)).filter_map(|g| g.last);
        let before = users.iter().map(|i| self.blocks[*i].at).chain(self.graphs[index].last).chain(others);
        let before: Vec<At> = before.collect();
        if before.iter().any(|at| !self.alive(*at)) {
            // Nobody can be asked to wait for a stream that is gone.
            if tenure_core::device::prove(0).is_err() {
                return Ok(());
            }
        } else {
            for at in before {
                self.order(at, to)?;
            }
        }
        // SAFETY: the executable graph is this program's and alive.
        unsafe { driver().graph_launch(self.graphs[index].exec as sys::CUgraphExec, to.raw) }.map_err(text)?;
        self.counts.graphs += 1;
        for user in users {
            self.blocks[user].at = to;
        }
        for (other, graph) in self.graphs.iter_mut().enumerate() {
            if graph.last.is_some() && (other == index || lenders.contains(&graph.capture)) {
                graph.last = Some(to);
            }
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, index: usize) -> Done {
        let graph = self.graphs.swap_remove(index);
        // SAFETY: this program's, and named no more. A launch that is under way ends first.
        unsafe { driver().graph_exec_destroy(graph.exec as sys::CUgraphExec) }.map_err(text)?;
        for block in &mut self.blocks {
            block.pins -= u32::from(graph.blocks.contains(&block.id));
            // Its own runs used it last; whoever uses it after this graph's end waits for those.
            if let (true, Some(last)) = (block.of_capture == Some(graph.capture), graph.last) {
                block.at = last;
            }
        }
        Ok(())
    }
}
