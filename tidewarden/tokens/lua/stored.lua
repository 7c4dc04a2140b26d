-- stored: write refreshed pairs back. Only grant and generation are compared, never the lease: an answer in hand is the truth.
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, grant and generation of the request, new row, due ms, deadline ms, the row it came from if its token may be
--         needed again (without its access token, see SPARES), else empty; `drop`: what does not fit is no spare
-- RETURNS per account: STORED, RECOVERED (that, and it is to be told, see tell.lua), ALREADY (this very pair is there, perhaps sealed anew since, or its
--         refresh token), SPARE (kept aside: the row had moved on), MOVED (it had, and the pair was to be dropped then), PAST (dropped: refreshes have
--         followed this one or its like, and where tokens are used once its use now would end the grant), GONE (no such account; or one of its name that was put
--         after it was deleted: what came for the old one may be somebody else's)
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local items = {}
for i = 3, #ARGV, 7 do
  items[#items + 1] = {ARGV[i], int(i + 1, 'grant', 0, COUNT_MAX), int(i + 2, 'generation', 0, COUNT_MAX), checked_row(i + 3),
                       int(i + 4, 'due ms', 0, NEVER), int(i + 5, 'deadline ms', 0, NEVER), ARGV[i + 6] or ''}
end

-- An account that fails or is dead has a pair to try from now on: it does not wait for its next try.
local function hope(account, row)
  local died, r = hope_for(account), tries_get(account)
  if not died and not redis.call('ZSCORE', FAILING, account) or r and r.holder ~= '' then return end
  redis.call('ZADD', FAILING, text(now), account)
  local expires = row_head(row).expires
  local t = token_task(now, expires > 0 and expires or now + S.urgent_ms)
  if died then settle_task(account, row, t) else place(account, t) end -- a dead account has no task
end

-- Whether the account that a request was for was deleted since: each one put after that has a greater grant than all that were deleted here.
local function another(grant, head)
  if head.grant <= grant then return false end
  local floor = tonumber(redis.call('HGET', META, 'floor')) or 0
  return grant <= floor and floor < head.grant
end

local reply = {}
for i = 1, #items do
  local account, grant, generation, row, due, deadline, previous = unpack(items[i])
  local old = redis.call('HGET', ACCOUNTS, account)
  local head = old and row_head(old)
  if not old or another(grant, head) then reply[i] = 'GONE'
  elseif string.sub(old, 1, HEAD) == string.sub(row, 1, HEAD) then reply[i] = 'ALREADY'
  elseif head.grant == grant and head.generation == generation then
    redis.call('HDEL', INTENTS, account)
    redis.call('HDEL', SPARES, account)
    displace(account, old) -- voids whatever lease lies on the task
    redis.call('HSET', ACCOUNTS, account, row)
    if #previous > HEAD then redis.call('HSET', SPARES, account, previous) end
    count('accounts refreshed')
    reply[i] = 'STORED'
    if redis.call('ZSCORE', DEAD, account) then
      hope(account, row) -- what was refused meanwhile may have ended the grant: that is found out before it is told to be well
    else
      if recover(account) then reply[i] = 'RECOVERED' end
      settle_task(account, row, token_task(due, deadline))
    end
  elseif previous == 'drop' then reply[i] = 'MOVED'
  elseif head.grant == grant and head.generation > generation + 1 then reply[i] = 'PAST'
  elseif head.current == row_head(row).current then reply[i] = 'ALREADY'
  else
    redis.call('HSET', SPARES, account, row)
    hope(account, old)
    count('spares kept')
    reply[i] = 'SPARE'
  end
end
return finish(reply)
