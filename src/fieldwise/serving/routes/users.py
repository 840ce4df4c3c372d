"""`GET /v1/users` and `GET /v1/users/{id}`: users to choose from, for the page."""

from typing import Annotated

from fastapi import APIRouter, Path

from fieldwise.serving.page.known_users import filled
from fieldwise.serving.page_forms import Limit, Offset, Search, UserResponse, UsersResponse
from fieldwise.serving.rows import RequestError, values_of
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The routes that list users and show one."""
    routes = APIRouter()

    @routes.get("/v1/users")
    async def find_users(search: Search = "", offset: Offset = 0, limit: Limit = 10) -> UsersResponse:
        """Users whose ids start with a text; none if the server cannot list users."""
        found, count = ([], 0) if served.users is None else await served.users.find(search, offset, limit)
        return UsersResponse(users=found, count=count)

    @routes.get("/v1/users/{id:path}")
    async def user(id: Annotated[str, Path(max_length=1000)]) -> UserResponse:  # noqa: A002 (the name in the path)
        """A user's values of the models' fields."""
        if served.users is None:
            raise RequestError("this server has no users: give their fields as context", "user", 404)
        now = served.service
        fields = now.browser(served.title).user_fields
        values, position, degraded = await served.users.of(id, fields)
        answer = UserResponse(id=id, fields=values, position=position, degraded=degraded)
        if now.log is not None:
            latest, columns = now.log.context(id), values.keys()
            named = [field for field in fields if field.column in latest and field.column not in columns]
            answer.context = {name: filled(one) for name, one in values_of(latest, named, "context").items()}
            answer.seen = len(now.log.used(id))
        return answer

    return routes
