//! Two engines that propose one slug, which would be one container.

use crate::text::Text;
use crate::{Engines, named};

pub(super) fn engines() -> Engines {
    let same = || Text::described(|d| d.slug = "same".to_owned());
    named([("slug-one", same().into()), ("slug-two", same().into())])
}
