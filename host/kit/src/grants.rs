//! What an operator would have to grant: read off the recipes themselves.

use sandbar_core::check::Grants;
use sandbar_core::engine::Recipe;
use sandbar_core::image::ImagePattern;
use sandbar_core::name::Names;
use sandbar_core::template::{self, Values};

/// Adds all that a recipe asks for. An image that is none is left to the check to name.
pub(crate) fn add(grants: &mut Grants, recipe: &Recipe, names: &Names) {
    let container = &recipe.container;
    let values = Values { namespace: Some(names.namespace()), ..Values::default() };
    if let Ok(image) = template::fill(&container.image, template::IN_IMAGE, &values)
        && let Ok(pattern) = ImagePattern::parse(&image)
    {
        once(&mut grants.images, pattern);
    }
    container.capabilities.iter().for_each(|c| once(&mut grants.capabilities, c.clone()));
    container.data.iter().for_each(|dir| once(&mut grants.data_dirs, dir.path.clone()));
    recipe.variables.iter().filter(|v| !v.prefixed).for_each(|v| once(&mut grants.variables, v.name.clone()));
}

fn once<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}
