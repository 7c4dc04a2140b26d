-- unwait: notes that nobody on this node waits for the end of a task any more.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 id
-- RETURNS 1, or 0 when this node was not to be told
open()
local holders = redis.call('HGET', key('waits'), ARGV[3])
if not holders or not has(holders, CALLER) then return finish(0) end
redis.call('HDEL', key('waits'), ARGV[3])
local rest = without(holders, CALLER)
if rest ~= '' then redis.call('HSET', key('waits'), ARGV[3], rest) end
set('awaited', redis.call('HLEN', key('waits')))
return finish(1)
