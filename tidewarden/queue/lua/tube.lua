-- tube: what the beanstalkd door has to know of a shard: how many jobs are in which state, and
-- which is the next of each. What is due is moved before.
-- DURABILITY none
-- GROWS   no
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- ARGV    3 the least deadline that is not urgent (ms)  4 tasks moved at most
-- RETURNS {{delayed and waiting in lanes, ready, leased, buried, urgent}, {paused until ms | 0,
--         for ms}, next ready {priority, deadline, id} | {}, next delayed {due ms, id} | {}, next
--         buried {ms, id} | {}, counters}
open()
local limit, most = int(3, 'deadline', 0, NEVER), int(4, 'tasks moved', 1, 1000)
if now >= S.alarm then promote(most) end
local ready, leased, urgent, first = 0, 0, 0, {}
for word in string.gmatch(S.pris, '%S+') do
  local index, priority = key('ready:' .. word), tonumber(word)
  local many = redis.call('ZCARD', index)
  ready = ready + many
  if priority < 50 then
    urgent = urgent + many
  elseif priority == 50 then
    urgent = urgent + redis.call('ZCOUNT', index, '-inf', '(' .. text(limit))
  end
  if many > 0 and not first[1] then
    local head = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
    first = { priority, tonumber(head[2]), head[1] }
  end
end
for word in string.gmatch(S.holders, '%S+') do
  leased = leased + redis.call('ZCARD', key('leased:' .. word))
end
local later, buried = delayed_first(1), redis.call('ZRANGE', key('buried'), 0, 0, 'WITHSCORES')
local counters = redis.call('HGETALL', key('counts'))
for name, field in pairs(IN_RECORD) do
  if S[field] then
    counters[#counters + 1], counters[#counters + 2] = name, text(S[field])
  end
end
local paused = S.paused > now and S.paused or 0
return finish({
  {
    S.later + redis.call('ZCARD', key('waiting')),
    ready,
    leased,
    redis.call('ZCARD', key('buried')),
    urgent,
  },
  { paused, paused > 0 and S.paused_for or 0 },
  first,
  later[1] and { later[2], later[1] } or {},
  buried[1] and { tonumber(buried[2]), buried[1] } or {},
  counters,
})
