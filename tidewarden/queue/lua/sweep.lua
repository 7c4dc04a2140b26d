-- sweep: does the leader's round: moves due tasks to ready, and tasks whose leases ran out to
-- ready, delayed or buried. Safe to run twice, or by two.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 epoch  4 tasks moved at most
-- RETURNS {moved, next tick of a schedule ms | -1}; error STALE unless the caller is the fence's
--         leader or newer
open()
local epoch, most = int(3, 'epoch', 1, NEVER), int(4, 'tasks moved', 1, 1000)
fence(epoch, CALLER)
local moved = 0
if now >= S.alarm then moved = promote(most) end
if moved > 0 then count('swept', moved) end
return finish({ moved, S.tick < NEVER and S.tick or -1 })
