//! Tools as signatures in Ruby, which a parser of Ruby takes, with their types in comments (G10 to G13).

use super::is_keyword;
use super::types::{Types, Way, key};
use crate::declare::{Dialect, Documented};
use crate::schemas::{Object, Remarks, Shape, Shapes, TypeNames, alternatives, common, forms};

const HEAD: &str = "# Types are in the words of RBS: `?` marks a key that may be missing.\n";
const END: &str = "# Calls a tool by its name in the catalog or here.
def tools.call(name, arguments = {}); end
# Calls what it is given at the same time, and returns the results in that order.
def tools.parallel(*callables); end
";

/// Declares tools as signatures.
pub(crate) struct Signatures;

impl Dialect for Signatures {
    fn frame(&self) -> [String; 3] {
        [HEAD, "\n", END].map(str::to_owned)
    }

    fn remarks(&self) -> Remarks {
        Remarks { says_integer: false }
    }

    fn own_types(&self) -> &'static [&'static str] {
        &[]
    }

    fn short(&self, alias: &str, about: &str) -> String {
        format!("{}def tools.{alias}(**arguments); end\n", comment(about))
    }

    fn tool(
        &self,
        tool: &Documented<'_>,
        shapes: &Shapes<'_>,
        _: &mut TypeNames<'_>,
        types: &mut String,
    ) -> String {
        let writer = Types { named: &shapes.named };
        for named in &shapes.named {
            let way = if named.is_input() { Way::In } else { Way::Out };
            let kind = writer.kind(&named.shape, way, 0).text;
            *types += &comment(&named.remark);
            *types += &comment(&format!("type {} = {kind}", named.name));
        }
        let (parameters, lines) = parameters(&writer, &shapes.input);
        let result = writer.kind(&shapes.output, Way::Out, 0).text;
        let returns = match &tool.returns {
            Some(returns) => format!("Returns {result}: {returns}"),
            None => format!("Returns {result}"),
        };
        let about = comment(&tool.doc) + &lines + &comment(&returns);
        format!("{about}def tools.{}({}); end\n", tool.alias, parameters.join(", "))
    }
}

/// Each line of a text as a comment, which nothing in it can end; nothing when there is nothing to say.
fn comment(text: &str) -> String {
    text.lines().map(|line| format!("# {line}\n")).collect()
}

/// The parameters of a call with such arguments, and a comment on each (G10, G11).
fn parameters(writer: &Types<'_, '_>, input: &Shape<'_>) -> (Vec<String>, String) {
    let Some(objects) = alternatives(input, writer.named) else {
        return (vec!["**arguments".to_owned()], String::new());
    };
    let object = common(&objects);
    let mut lines: String = forms(&objects).iter().map(|text| comment(text)).collect();
    let mut parameters = Vec::new();
    for member in &object.members {
        let kind = writer.kind(&member.shape, Way::In, 1).text;
        let need = if member.is_required { "required" } else { "optional" };
        let about = if member.remark.is_empty() { String::new() } else { format!(". {}", member.remark) };
        lines += &comment(&format!("  {}{kind}, {need}{about}", key(member.name, Way::In)));
        if is_keyword(member.name) {
            let default = if member.is_required { "" } else { " nil" };
            parameters.push(format!("{}:{default}", member.name));
        }
    }
    if takes_others(&object) {
        parameters.push("**others".to_owned());
    }
    if !object.patterns.is_empty() {
        lines += &comment(&format!("  **others: {}", object.patterns_text()));
    }
    (parameters, lines)
}

fn takes_others(object: &Object<'_>) -> bool {
    object.says_nothing() || object.is_open() || object.members.iter().any(|member| !is_keyword(member.name))
}
