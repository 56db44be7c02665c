//! Objects that are said in parts, put together: Python has no type of values that have several types
//! at once, and a call has one list of parameters.

use std::collections::HashMap;

use super::notes::cut;
use super::shape::{Further, Member, Object, Shape};
use super::walk::Named;

/// How many objects a shape may be one of.
const ALTERNATIVES_MAX: usize = 16;
/// How deep parts are looked for in parts.
const DEPTH_MAX: usize = 16;
/// How many members parts have in all before they are given up.
const MEMBERS_MAX: usize = 4_096;
/// The longest text on ways to call, in bytes.
const FORMS_BYTES_MAX: usize = 400;

/// The objects that a value of this shape is one of; none when it isn't always an object, or there are
/// too many.
pub(crate) fn alternatives<'a>(shape: &Shape<'a>, named: &[Named<'a>]) -> Option<Vec<Object<'a>>> {
    Merge { named, n_members: 0 }.alternatives(shape, DEPTH_MAX)
}

/// One object that every one of these is: a member is required where all of them require it.
pub(crate) fn common<'a>(objects: &[Object<'a>]) -> Object<'a> {
    let mut members: Vec<Member<'a>> = Vec::new();
    let mut places: HashMap<&'a str, usize> = HashMap::new();
    for member in objects.iter().flat_map(|object| &object.members) {
        let place = *places.entry(member.name).or_insert(members.len());
        match members.get_mut(place) {
            None => members.push(member.clone()),
            Some(known) => {
                let mut shapes = match std::mem::replace(&mut known.shape, Shape::Never) {
                    Shape::OneOf(shapes) => shapes,
                    shape => vec![shape],
                };
                shapes.push(member.shape.clone());
                known.shape = Shape::OneOf(shapes);
                if known.remark.is_empty() {
                    known.remark.clone_from(&member.remark);
                }
            }
        }
    }
    for member in &mut members {
        member.is_required = objects.iter().all(|object| requires(object, member.name));
    }
    let further = objects.iter().find(|object| object.is_open());
    let further = further.or(objects.first()).map_or(Further::Unsaid, |object| object.further.clone());
    let patterns = objects.iter().flat_map(|object| object.patterns.clone()).collect();
    Object { members, patterns, further }
}

/// Which arguments belong together, where there are several ways to call.
pub(crate) fn forms(objects: &[Object<'_>]) -> Vec<String> {
    if objects.len() < 2 {
        return Vec::new();
    }
    let form = |object: &Object<'_>| {
        let names: Vec<_> = object.members.iter().map(|member| member.name).collect();
        names.join(", ")
    };
    let forms: Vec<_> = objects.iter().map(|object| format!("({})", form(object))).collect();
    vec![cut(&format!("One of: {}", forms.join(", ")), FORMS_BYTES_MAX)]
}

fn requires(object: &Object<'_>, name: &str) -> bool {
    object.members.iter().any(|member| member.is_required && member.name == name)
}

struct Merge<'m, 'a> {
    named: &'m [Named<'a>],
    n_members: usize,
}

impl<'a> Merge<'_, 'a> {
    fn alternatives(&mut self, shape: &Shape<'a>, depth: usize) -> Option<Vec<Object<'a>>> {
        let depth = depth.checked_sub(1)?;
        match shape {
            Shape::Object(object) => {
                self.n_members += object.members.len() + 1;
                (self.n_members <= MEMBERS_MAX).then(|| vec![object.clone()])
            }
            Shape::Named(n) => self.alternatives(&self.named[*n].shape, depth),
            Shape::OneOf(shapes) => {
                let mut all = Vec::new();
                for shape in shapes {
                    all.extend(self.alternatives(shape, depth)?);
                    if all.len() > ALTERNATIVES_MAX {
                        return None;
                    }
                }
                (!all.is_empty()).then_some(all)
            }
            Shape::AllOf(shapes) => self.all_of(shapes, depth),
            _ => None,
        }
    }

    /// Each alternative of one part together with each of the others.
    fn all_of(&mut self, shapes: &[Shape<'a>], depth: usize) -> Option<Vec<Object<'a>>> {
        let mut all: Option<Vec<Object<'a>>> = None;
        for shape in shapes.iter().filter(|shape| !shape.is_any()) {
            let next = self.alternatives(shape, depth)?;
            let Some(before) = all else {
                all = Some(next);
                continue;
            };
            if before.len() * next.len() > ALTERNATIVES_MAX {
                return None;
            }
            let together = before.iter().flat_map(|one| next.iter().map(|other| both(one, other)));
            let together: Vec<_> = together.collect();
            self.n_members += together.iter().map(|object| object.members.len()).sum::<usize>();
            if self.n_members > MEMBERS_MAX {
                return None;
            }
            all = Some(together);
        }
        all
    }
}

/// An object that is both.
fn both<'a>(one: &Object<'a>, other: &Object<'a>) -> Object<'a> {
    let mut members = one.members.clone();
    let places: HashMap<&str, usize> = one.members.iter().enumerate().map(|(n, m)| (m.name, n)).collect();
    for member in &other.members {
        let Some(known) = places.get(member.name).map(|place| &mut members[*place]) else {
            members.push(member.clone());
            continue;
        };
        known.is_required |= member.is_required;
        if known.shape.is_any() {
            known.shape = member.shape.clone();
        } else if !member.shape.is_any() {
            let first = std::mem::replace(&mut known.shape, Shape::Never);
            known.shape = Shape::AllOf(vec![first, member.shape.clone()]);
        }
        if known.remark.is_empty() {
            known.remark.clone_from(&member.remark);
        }
    }
    let patterns = one.patterns.iter().chain(&other.patterns).cloned().collect();
    let further = if one.is_open() { one.further.clone() } else { other.further.clone() };
    Object { members, patterns, further }
}
