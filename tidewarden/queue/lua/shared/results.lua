-- results: how the end of a task is remembered for a while, and which nodes wait to hear of it.
-- Keys of a shard: waits (hash id → holders), done:<id> and gone:<id> (how a task ended).

-- A task is done, deleted or buried: the nodes in `waits` (hash id → holders) are told. The record
-- counts its ids, so that nobody looks for none.
local function over(id)
  if S.awaited > 0 then ended[#ended + 1] = id end
end

-- How long the end of a task is remembered: with `known` for dedup_ms, else only where somebody
-- waits to hear of it. 0: not.
local function memory_ms(id, known)
  if known and S.dedup_ms > 0 then return S.dedup_ms end
  return S.awaited > 0 and redis.call('HEXISTS', key('waits'), id) == 1 and 10000 or 0
end

-- A task is removed undone: what Q.WAIT answers for a while; a put of the id is not held up by it.
local function removed(id, known)
  local ms = memory_ms(id, known)
  if ms > 0 then redis.call('SET', key('gone:' .. id), '1', 'PX', text(ms)) end
  over(id)
end

-- This node is told when the task ends.
local function await_end(id)
  local holders = redis.call('HGET', key('waits'), id) or ''
  if has(holders, CALLER) then return end
  redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
  redis.call('HSET', key('waits'), id, with(holders, CALLER))
  if holders == '' then set('awaited', S.awaited + 1) end
end
