-- session_leave: notes that the last connection of this node has left a session. Its grace begins
-- when no other node has one.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix (see session_join)
-- ARGV    1 now_ms  2 node.boot  3 uuid  4 the attach number that is given up
-- RETURNS ms until its grace ends; -1: it is attached elsewhere, or here by a later number; -2:
--         there is no such session
local uuid, number, record = ARGV[3], int(4, 'attach number', 0, 9007199254740991), key(ARGV[3])
local node, boot = string.match(CALLER, '^(.*)%.(%d+)$')
if not node then refuse('BADARG the holder ' .. CALLER .. ' is not node.boot') end
local stored = redis.call('HMGET', record, 'grace_ms', 'nodes', 'ended', 'at:' .. node)
if not stored[1] or stored[3] then return -2 end
if stored[4] ~= boot .. ' ' .. text(number) then return -1 end
return session_detach(
  uuid,
  record,
  node,
  session_number(record, 'grace_ms', stored[1]),
  session_number(record, 'nodes', stored[2])
)
