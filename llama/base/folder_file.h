#pragma once
// Files in folders that others have made: models, checkpoints, tokenizers.

#include <string>

namespace rz {

// True: the folder has a file of this name. Throws if what has the name is no regular file, or is a link that leads
// nowhere or out of the folder: what it leads to would be read, and copied into what this run publishes. Only the
// blobs of a Hugging Face cache (models--ORG--NAME/blobs/) are no way out.
bool has_file(const std::string& folder, const std::string& name);

}  // namespace rz
