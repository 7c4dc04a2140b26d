-- wait: reads how tasks ended, or notes that this node wants to be told when they do.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per task: id, note 0|1
-- RETURNS per task: {word, result}; word is waits (it has not ended), done, buried (the result is
--         the reason), deleted or unknown
open()
if #ARGV < 4 or #ARGV % 2 ~= 0 then refuse('BADARG a wait has two arguments a task: id, note') end
local function ending(id, note)
  if stored(id) then
    local r = tries_get(id)
    if (not r or r.holder == '') and redis.call('ZSCORE', key('buried'), id) then
      return { 'buried', r and r.reason or '' }
    end
    if note then await_end(id) end
    return { 'waits', '' }
  end
  local done = redis.call('GET', key('done:' .. id))
  if done then return { 'done', string.match(done, '^%d+ ack (.*)$') or '' } end
  return { redis.call('EXISTS', key('gone:' .. id)) == 1 and 'deleted' or 'unknown', '' }
end

local reply = {}
for i = 3, #ARGV, 2 do
  reply[#reply + 1] = ending(ARGV[i], ARGV[i + 1] == '1')
end
return finish(reply)
