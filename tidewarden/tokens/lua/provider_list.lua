-- provider_list: the providers that were put while nodes ran, where a node does not know them yet.
-- They lie in the only shard of `_vault`, in a hash `providers`: name → record (sealed; Python
-- alone reads it), and under the empty name a version, which is another after each change.
-- Beside it is a hash `provider_makers`: name → the user who put it first.
-- DURABILITY none
-- GROWS   no
-- READS   nothing is written
-- KEYS    1 the shard  2 the view
-- ARGV    3 the version that is known (0: none)
-- RETURNS {version}, or where that is not the known one {version, name, record, name, record, …}
open()
local name = key('providers')
local version = redis.call('HGET', name, '') or '0'
if version == ARGV[3] then return finish({ version }) end
local found = { version }
local all = redis.call('HGETALL', name)
for i = 1, #all, 2 do
  if all[i] ~= '' then
    found[#found + 1], found[#found + 2] = all[i], all[i + 1]
  end
end
return finish(found)
