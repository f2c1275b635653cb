//! The nodes of a cluster, by number and by name.

use std::{
    collections::BTreeMap,
    ops::{Index, IndexMut},
};

use packhorse_cluster::NodeName;

use crate::node::Node;

/// The nodes, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Nodes {
    list: Vec<Node>,
    by_name: BTreeMap<NodeName, usize>,
}

impl Nodes {
    pub(crate) fn push(&mut self, node: Node) {
        let before = self.by_name.insert(node.name.clone(), self.list.len());
        assert!(before.is_none(), "two nodes have the name {}", node.name);
        self.list.push(node);
    }

    /// Returns the number of the node of this name.
    pub(crate) fn index(&self, name: &NodeName) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the number of the node of this name.
    ///
    /// Panics if there is none.
    pub(crate) fn named(&self, name: &NodeName) -> usize {
        let index = self.index(name);
        index.unwrap_or_else(|| panic!("there is no node {name}"))
    }

    /// Returns the node of this name.
    pub fn get(&self, name: &NodeName) -> Option<&Node> {
        Some(&self.list[self.index(name)?])
    }

    /// Returns the node of this name, to change it.
    pub fn get_mut(&mut self, name: &NodeName) -> Option<&mut Node> {
        let index = self.index(name)?;
        Some(&mut self.list[index])
    }

    /// Has models that are loaded from now on take their time.
    pub fn cool_down(&mut self) {
        for node in &mut self.list {
            node.behaviour.warm = false;
        }
    }

    /// Returns the nodes.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.list.iter()
    }
}

impl Index<usize> for Nodes {
    type Output = Node;

    fn index(&self, index: usize) -> &Node {
        &self.list[index]
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, index: usize) -> &mut Node {
        &mut self.list[index]
    }
}
